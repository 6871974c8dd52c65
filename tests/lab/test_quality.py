"""The comparison of docs/models.md with other programs, on made-up rows."""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch

from explorer.recordings.quality import QualityRow
from lab import quality
from lab.dithered import BLOCK, LEVELS, dithered
from lab.files.figure import frontier_of, quality_figure
from lab.intervals import paired

OURS = QualityRow(
    quality.OURS, "recipe, the bytes of Q4_K_M", "Quantization Explorer", True, "GGUF", True,
    bytes=99, bits=4.4, kl=0.03, losses=(0.01, 0.05, 0.03), same_top=0.9, tokens=30, seconds=2.0,
)  # fmt: skip
THEIRS = QualityRow(
    quality.EQUAL, "Q4_K_M", "llama.cpp", False, "GGUF", True,
    bytes=100, bits=4.5, kl=0.04, losses=(0.02, 0.06, 0.04), same_top=0.8, tokens=30, seconds=1.0,
    note="3 tensors have other types",
)  # fmt: skip
CHECKPOINT = QualityRow(
    "bitsandbytes-nf4", "NF4", "bitsandbytes", False, "bitsandbytes", bytes=300, bits=9.0, kl=0.1,
    losses=(0.1, 0.1, 0.1), same_top=0.7, tokens=30,
)  # fmt: skip
MISSING = QualityRow("gptqmodel", "GPTQModel", "gptqmodel", False, "–", missing="not measured")
ROWS = (OURS, THEIRS, CHECKPOINT, MISSING)


def test_the_comparison_at_equal_bytes_is_exact() -> None:
    """The paired difference is 0.01 in every text: a quarter of 0.04, without any interval."""
    value, half = quality.less(OURS, THEIRS)
    assert (value, half) == (pytest.approx(25.0), pytest.approx(0.0, abs=1e-9))
    assert quality.less(THEIRS, OURS)[0] == pytest.approx(-100 / 3)
    difference, width = paired(CHECKPOINT.losses, OURS.losses)
    assert quality.less(OURS, CHECKPOINT) == pytest.approx((-1000 * difference, 1000 * width))
    by_gptq = replace(OURS, name=quality.BY_GPTQ, bytes=98, kl=0.02, losses=(0.0, 0.04, 0.02))
    said = quality.at_equal_bytes((*ROWS, by_gptq))
    assert "98 bytes" in said and "50.0 ± 0.0 %" in said and "25.0 ± 0.0 %" in said


def test_the_frontier_is_what_no_smaller_file_is_as_good_as() -> None:
    assert frontier_of(ROWS) == [OURS]
    figure = quality_figure(ROWS)
    markers = [(trace.marker.color, trace.marker.symbol) for trace in figure.data if trace.mode == "markers"]
    assert len(set(markers)) == len(markers) == 3 and figure.layout.yaxis.type == "log"


def test_noise_stays_within_its_cell() -> None:
    """A weight off the grid by more than half a step would be another code."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, LEVELS + 1, (4, 2 * BLOCK), generator=generator)
    weight = 0.01 * codes - 0.05
    noise = dithered(weight, generator) - weight
    assert 0 < float(noise.abs().max()) <= 0.005 + 1e-6 and float(noise.abs().mean()) > 0.002
