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
from tests.covering import EACH_SCHEME

SCHEMES = [sight.scheme for sight in picture.SIGHTS]


@pytest.fixture(scope="module")
def portrait() -> torch.Tensor:
    return load_matrix("sample:portrait").values


def decoded(png: bytes) -> np.ndarray:
    return np.asarray(Image.open(io.BytesIO(png)))


@pytest.mark.parametrize("name", EACH_SCHEME)
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


def test_what_the_words_say(portrait: torch.Tensor) -> None:
    """Counts and comparisons in the sentences: greys, brightness, bits, decibels."""

    def restored(name: str) -> torch.Tensor:
        return quantize(portrait, Scheme.parse(name)).dequantize()

    def report(name: str) -> tuple[float, float]:
        found = compare(portrait, quantize(portrait, Scheme.parse(name)))
        return found.bits.total, found.sqnr_db

    assert restored("int8_tensor").unique().numel() == 128
    assert restored("int4_tensor").unique().numel() == 8
    runs = restored("int2_group32").reshape(-1, 32)
    assert max(len(run.unique()) for run in runs) == 2
    assert torch.allclose(runs.amax(1), portrait.reshape(-1, 32).amax(1) / 2, rtol=1e-3)
    assert max(len(run.unique()) for run in restored("int2_group32_asym").reshape(-1, 32)) == 4
    rows = restored("binary_row")
    assert torch.allclose(rows[:, 0], portrait.mean(1), atol=1e-3) and bool((rows == rows[:, :1]).all())
    cut_off = restored("mxfp4").reshape(-1, 32).amax(1) / portrait.reshape(-1, 32).amax(1)
    assert cut_off.min() < 0.8
    bits, db = report("int4_group32_asym")
    fp8_bits, fp8_db = report("fp8_e4m3_tensor")
    assert bits < 0.6 * fp8_bits and 0 < fp8_db - db < 1


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


NAMES = {
    "original": 200,
    "nvfp4": 200,
    "int4_group128": 404,
    "..%2Fnvfp4": 404,
    "nvfp4~": 404,
    "": 404,
}


@pytest.mark.parametrize("name", NAMES)
def test_only_the_chapters_own_pictures_are_served(client: TestClient, name: str) -> None:
    """A visitor cannot have any scheme of the grammar quantized and kept; browsers keep what they got."""
    answer = client.get(f"/picture/{name}.png")
    assert answer.status_code == NAMES[name]
    if answer.status_code == 200:
        assert answer.headers["content-type"] == "image/png"
        assert answer.headers["cache-control"] == f"public, max-age={picture.KEPT_SECONDS}"
        assert decoded(answer.content).shape == (600, 512)
    else:
        assert answer.json() == {"detail": addresses.UNKNOWN}
