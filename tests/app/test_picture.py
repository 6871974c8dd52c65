"""The first chapter of Learn: its numbers are the core's, and its pictures are what the schemes restored.

If these fail, the chapter says decibels that belong to another picture than the one beside them.
"""

from __future__ import annotations

import base64
import io
import re

import numpy as np
import pytest
import torch
from PIL import Image
from starlette.testclient import TestClient

from app import glossary
from app.learn import picture
from app.serving import addresses
from explorer import compare, load_matrix, quantize
from explorer.schemes import Scheme
from tests.covering import sampled

SCHEMES = [sight.scheme for sight in picture.SIGHTS]


@pytest.fixture(scope="module")
def portrait() -> torch.Tensor:
    return load_matrix("sample:portrait").values


def decoded(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


@pytest.mark.parametrize("name", sampled(SCHEMES, SCHEMES[:3]))
def test_numbers_and_pixels_are_the_cores(name: str, portrait: torch.Tensor) -> None:
    """Bits, dB, the whole picture and the cut, each from the same quantized tensor."""
    (shown,) = (one for one in picture.shown() if one.sight.scheme == name)
    q = quantize(portrait, Scheme.parse(name))
    report = compare(portrait, q)
    assert shown.note == f"{report.bits.total:.4g} bits, {report.sqnr_db:.1f} dB"
    want = (q.dequantize().double().clamp(0, 1) * 255).round().to(torch.uint8).numpy()
    assert (decoded(picture.drawn(name)) == want).all()
    cut = picture.CUT
    part = decoded(base64.b64decode(shown.thumbnail.split(",")[1]))
    assert (part == want[cut.row : cut.row + cut.rows, cut.column : cut.column + cut.columns]).all()
    assert bool(shown.outlines) == (q.scheme.block != (None, None))


def test_the_chapter_is_one_piece() -> None:
    """A button and a sentence for each scheme, the first choice among them, every glossary term known, and no
    whole picture in the page itself."""
    markup = picture.picture()
    assert re.findall(r'<button type="button" value="(.*?)"', markup) == SCHEMES
    assert re.findall(r'<p data-scheme="(.*?)"', markup) == SCHEMES
    assert re.findall(r'value="(\S+)" aria-pressed="true"', markup) == [picture.FIRST]
    known = {entry.term.lower() for entry in glossary.terms()}
    assert {term for one in picture.SIGHTS for term in re.findall(r"<(.*?)>", one.seen)} <= known
    assert len(markup) < 80_000


def test_only_the_chapters_own_pictures_are_served(client: TestClient) -> None:
    """A visitor cannot have any scheme of the grammar quantized and kept; browsers keep what they got."""
    for name in ("original", "nvfp4"):
        answer = client.get(f"/picture/{name}.png")
        assert answer.status_code == 200 and answer.headers["content-type"] == "image/png"
        assert answer.headers["cache-control"] == f"public, max-age={picture.KEPT_SECONDS}"
        assert decoded(answer.content).shape == (600, 512)
    for name in ("int4_group128", "..%2Fnvfp4", "nvfp4~", ""):
        answer = client.get(f"/picture/{name}.png")
        assert answer.status_code == 404 and answer.json() == {"detail": addresses.UNKNOWN}
