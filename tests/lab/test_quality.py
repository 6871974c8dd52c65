"""The comparison of docs/models.md with other programs, on made-up rows and on the recorded ones.

If these fail, the page says that a file is better than another by a number that the rows do not give.
"""

from __future__ import annotations

from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file, save_file

from explorer.figures.quality import frontier_of, quality_figure
from explorer.recordings.quality import QualityRow, recorded_quality
from lab import quality
from lab.dithered import BLOCK, LEVELS, dithered, write_dithered
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
RECORDED = recorded_quality().rows


def test_the_comparison_at_equal_bytes_is_exact() -> None:
    """The paired difference is 0.01 in every text: a quarter of 0.04, without any interval."""
    value, half = quality.less(OURS, THEIRS)
    assert (value, half) == (pytest.approx(25.0), pytest.approx(0.0, abs=1e-9))
    assert quality.less(THEIRS, OURS)[0] == pytest.approx(-100 / 3)
    difference, width = paired(CHECKPOINT.losses, OURS.losses)
    assert quality.less(OURS, CHECKPOINT) == pytest.approx((-1000 * difference, 1000 * width))
    by_gptq = replace(OURS, name=quality.BY_GPTQ, bytes=98, kl=0.02, losses=(0.0, 0.04, 0.02))
    said = quality.at_equal_bytes((*ROWS, by_gptq))
    assert "98 bytes, at most the 100" in said and "(0.0200 beside 0.0400 nats a token)" in said
    assert "by GPTQ is 50.0 ± 0.0 % less" in said and "of rounding 25.0 ± 0.0 % less" in said
    assert "not recorded" in quality.at_equal_bytes(ROWS)
    assert quality.compared(THEIRS, OURS).endswith("% more")
    wide = replace(OURS, losses=(0.0, 0.01, 0.2))
    assert quality.compared(wide, THEIRS).endswith("% more (not told apart)")


def test_a_file_is_compared_with_no_larger_one_of_its_reader() -> None:
    """Nor with one that another reader judged."""
    table = quality.against_four_bits(ROWS)
    assert "25.0 ± 0.0 % less" in table and table.count("\n") == 3
    nf4 = next(line for line in table.splitlines() if "NF4" in line)
    assert nf4.count("–") == 3


def test_tables_hold_what_was_measured_and_say_what_was_not() -> None:
    """A row without a file has no number."""
    table = quality.quality_table(ROWS)
    assert table.count("\n") == 4 and "GPTQModel" not in table and "**recipe" in table
    assert quality.not_made(ROWS) == "* GPTQModel: not measured."
    assert quality.replaced_types(ROWS) == "  * Q4_K_M: 3 tensors have other types"
    assert "not recorded" in quality.quality_table([MISSING])


def test_the_frontier_is_what_no_smaller_file_is_as_good_as() -> None:
    assert frontier_of(ROWS) == [OURS]
    figure = quality_figure(ROWS)
    markers = [(trace.marker.color, trace.marker.symbol) for trace in figure.data if trace.mode == "markers"]
    assert len(set(markers)) == len(markers) == 3 and figure.layout.yaxis.type == "log"
    assert len({color for color, _ in markers}) == 2
    assert not quality_figure([MISSING]).data


def test_noise_stays_within_its_cell(tmp_path) -> None:  # type: ignore[no-untyped-def]
    """A weight off the grid by more than half a step would be another code."""
    generator = torch.Generator().manual_seed(0)
    codes = torch.randint(0, LEVELS + 1, (4, 2 * BLOCK), generator=generator)
    weight = 0.01 * codes - 0.05
    noise = dithered(weight, generator) - weight
    assert 0 < float(noise.abs().max()) <= 0.005 + 1e-6 and float(noise.abs().mean()) > 0.002
    model = tmp_path / "model"
    model.mkdir()
    (model / "config.json").write_text("{}")
    save_file({"w": weight, "norm": torch.ones(5)}, model / "model.safetensors")
    written = load_file(write_dithered(model, tmp_path / "out") / "model.safetensors")
    assert torch.equal(written["norm"], torch.ones(5)) and not torch.equal(written["w"], weight)
    assert (tmp_path / "out" / "config.json").is_file()


def test_the_recorded_files_are_comparable() -> None:
    """Of one model, on the same number of tokens; the equal-bytes row is no larger than its counterpart."""
    measured = [row for row in RECORDED if row.kl is not None]
    assert len({(row.model, row.tokens, len(row.losses)) for row in measured}) == 1
    ours, theirs = (quality.row_of(RECORDED, name) for name in (quality.OURS, quality.EQUAL))
    assert ours is not None and theirs is not None and ours.bytes <= theirs.bytes
    assert all(bool(row.missing) == (row.kl is None) for row in RECORDED)
