"""A picture is read as the grey values that its pixels show, or is refused in words.

If these fail, a photograph lies on its side, its values are others than the picture's, or a small file takes
the memory of the page.
"""

from __future__ import annotations

import dataclasses
import io
import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from explorer import SourceError, load_matrix
from explorer.sources import picture_file
from explorer.sources.source_limits import HOSTED, LOCAL
from explorer.sources.tensors import open_tensors
from tests.sources.hostile import png

GREY = np.array([[0, 51, 102], [153, 204, 255]], np.uint8)
RED, GREEN, BLUE, WHITE = (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255)


def encoded(image: Image.Image, kind: str = "PNG", **options: object) -> bytes:
    out = io.BytesIO()
    image.save(out, kind, **options)  # type: ignore[arg-type]
    return out.getvalue()


def coloured(mode: str, *pixels: object) -> Image.Image:
    """One row of pixels."""
    image = Image.new(mode, (len(pixels), 1))
    image.putdata(pixels)
    return image


def palette(**options: object) -> bytes:
    return encoded(coloured("RGB", RED, WHITE).quantize(2), **options)


STORED = GREY.tolist()
WIDE = [[0, 1, 65535]]
READ: dict[str, tuple[Callable[[], bytes], list[list[int]], int]] = {
    "grey.png": (lambda: encoded(Image.fromarray(GREY)), STORED, 255),
    "black-and-white.png": (lambda: encoded(coloured("1", 0, 255)), [[0, 255]], 255),
    "colours.png": (lambda: encoded(coloured("RGB", RED, GREEN, BLUE, WHITE)), [[76, 150, 29, 255]], 255),
    "palette.png": (palette, [[76, 255]], 255),
    "wide.png": (lambda: encoded(Image.fromarray(np.array(WIDE, np.uint16))), WIDE, 65535),
    "opaque.png": (lambda: encoded(coloured("RGBA", (*RED, 255))), [[76]], 255),
    "clear.png": (lambda: encoded(coloured("RGBA", (*RED, 0), (0, 0, 0, 128))), [[255, 127]], 255),
    "clear-colour.png": (
        lambda: encoded(coloured("RGB", RED, BLUE), transparency=RED), [[255, 29]], 255,
    ),
    "clear-of-palette.png": (lambda: palette(transparency=b"\0\0"), [[255, 255]], 255),
    "flat.jpg": (lambda: encoded(Image.new("L", (16, 8), 100), "JPEG"), [[100] * 16] * 8, 255),
    "several.jpg": (
        lambda: encoded(
            Image.new("L", (8, 8), 100), "MPO", save_all=True, append_images=[Image.new("L", (8, 8))]
        ),
        [[100] * 8] * 8,
        255,
    ),
}  # fmt: skip


def test_values_are_the_pixels(tmp_path: Path) -> None:
    """Every kind of file: rows and columns in order, stored value over the largest one, to the bit. Of the
    several views that a phone stores, the first is the picture."""
    for name, (make, stored, largest) in READ.items():
        (tmp_path / name).write_bytes(make())
        matrix = load_matrix(str(tmp_path / name))
        assert torch.equal(matrix.values, torch.tensor(stored, dtype=torch.float32) / largest), name
        assert matrix.dtype == f"{8 if largest == 255 else 16}-bit grey" and matrix.name == Path(name).stem


STANDS: dict[int, list[list[int]]] = {
    1: [[0, 51, 102], [153, 204, 255]], 2: [[102, 51, 0], [255, 204, 153]],
    3: [[255, 204, 153], [102, 51, 0]], 4: [[153, 204, 255], [0, 51, 102]],
    5: [[0, 153], [51, 204], [102, 255]], 6: [[153, 0], [204, 51], [255, 102]],
    7: [[255, 102], [204, 51], [153, 0]], 8: [[102, 255], [51, 204], [0, 153]],
}  # fmt: skip
"""EXIF 2.32, table 6 (Orientation) -> what a viewer shows of ``GREY``."""


def test_a_picture_stands_as_a_viewer_shows_it(tmp_path: Path) -> None:
    """A phone stores pictures lying down and says so in EXIF; of 16 bits too."""
    exif = Image.Exif()
    for (exif[0x0112], shown), values in itertools.product(
        STANDS.items(), (GREY, GREY.astype(np.uint16) * 257)
    ):
        (tmp_path / "x.png").write_bytes(encoded(Image.fromarray(values), exif=exif))
        want = torch.tensor(shown, dtype=torch.float32) / 255
        assert torch.allclose(load_matrix(str(tmp_path / "x.png")).values, want, atol=1e-7, rtol=0)


ANIMATED = {"save_all": True, "append_images": [Image.new("L", (4, 4), 9)]}
WHOLE = encoded(Image.fromarray(np.arange(64, dtype=np.uint8).reshape(8, 8).repeat(9, 0)))
REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "words.png": (lambda: b"no picture", "words.png is not a PNG file"),
    "empty.jpg": (lambda: b"", "empty.jpg is not a JPEG file"),
    "gif.png": (lambda: encoded(Image.fromarray(GREY), "GIF"), "not a PNG file"),
    "inks.jpg": (lambda: encoded(Image.new("CMYK", (8, 8)), "JPEG"), r"CMYK"),
    "moving.png": (lambda: encoded(Image.new("L", (4, 4)), **ANIMATED), "animated"),
    "cut.png": (lambda: WHOLE[:-40], "cut.png is cut short or damaged"),
    "cut.jpg": (lambda: encoded(Image.effect_noise((64, 64), 80), "JPEG")[:900], "cut short or damaged"),
    "nothing.png": (lambda: png(1 << 13, 1 << 11, b""), "cut short or damaged"),
    "bomb.png": (lambda: png(1 << 14, 1 << 13, b""), "more than 67,108,864 pixels"),
    "narrow.png": (lambda: png(1, 65_536, b""), "a side has at most 65,535"),
    "colour-of-wide.png": (
        lambda: encoded(Image.fromarray(np.array(WIDE, np.uint16)), transparency=1), "transparent",
    ),
}  # fmt: skip


def test_a_refused_picture_says_why(tmp_path: Path) -> None:
    """One line of our own words, without a path of the machine; sizes are looked at before anything is
    decoded."""
    for name, (make, words) in REFUSED.items():
        (tmp_path / name).write_bytes(make())
        with pytest.raises(SourceError, match=words) as refusal:
            open_tensors(tmp_path / name)
        assert str(tmp_path) not in str(refusal.value) and str(refusal.value).isprintable()


def test_the_limit_on_pixels_is_the_visitors(tmp_path: Path) -> None:
    """A public page decodes fewer than a local one; and of too many values the first rows are shown."""
    (tmp_path / "x.png").write_bytes(encoded(Image.fromarray(GREY)))
    with pytest.raises(SourceError, match="more than 5 pixels"):
        open_tensors(tmp_path / "x.png", limits=dataclasses.replace(HOSTED, pixels=5))
    source = open_tensors(tmp_path / "x.png", limits=dataclasses.replace(HOSTED, pixels=6))
    cut = source.matrix(max_elements=5)
    assert cut.cut and cut.values.shape == (1, 3)
    assert HOSTED.pixels < LOCAL.pixels < Image.MAX_IMAGE_PIXELS  # type: ignore[operator]


def test_a_jpeg_may_be_filled(tmp_path: Path) -> None:
    """With 255s before a marker and within what is coded, of which Pillow copied all for each 64 kB: four
    minutes for 125 MB. What follows its end is not read, and there are few bytes for each pixel."""
    noise = np.random.default_rng(0).integers(0, 256, (64, 80), np.uint8)
    for options in ({}, {"progressive": True}, {"quality": 100, "subsampling": 0, "exif": b"\xff" * 99}):
        plain = encoded(Image.fromarray(noise), "JPEG", **options)
        assert picture_file._unfilled(bytearray(plain)) == plain
        scan = plain.index(b"\xff\xda")
        tables, coded, fill = plain[:scan], plain[scan:-2], b"\xff" * (picture_file._PIECE * 2 + 5)
        stuffed = coded.replace(b"\xff\x00", fill[:50] + b"\xff\x00", 3)
        filled = tables + fill + stuffed + fill + b"\xff\xd9"
        assert picture_file._unfilled(bytearray(filled + b"\xff\xc0 more")) == plain
        (tmp_path / "a.jpg").write_bytes(plain)
        want = load_matrix(str(tmp_path / "a.jpg")).values
        (tmp_path / "a.jpg").write_bytes(filled + b"\xff" * 9)
        assert torch.equal(load_matrix(str(tmp_path / "a.jpg")).values, want)
    dot = encoded(Image.new("L", (8, 8)), "JPEG")
    (tmp_path / "a.jpg").write_bytes(dot[:-2] + bytes(2 << 20) + dot[-2:])
    with pytest.raises(SourceError, match="more bytes than its 8 × 8 pixels need"):
        load_matrix(str(tmp_path / "a.jpg"))
