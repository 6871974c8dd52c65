"""Every scheme that a target carries, read back by the program that the target is for.

If these fail, that program computes with another weight than the one that was measured here.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch
from torch import Tensor

from explorer import SCHEMES, Scheme, quantize
from explorer.checkpoints import EXPORTS, write_one
from explorer.checkpoints.export import plain_dtype
from tests.checkpoints.reading import NAME, bytes_in, reader_of

SHAPE = (128, 512)
SPELLED = (
    "int8~1x64~asymmetric~float16~minmax",
    "int5~1x32~symmetric~float16~minmax",
    "int4~1x16~asymmetric~bfloat16~mse",
    "int7~row~symmetric~float32~minmax",
    "int4~1x64~no_clip~float16~minmax~fit",
    "float8_e4m3fn~128x128~symmetric~bfloat16~minmax",
    "nf4~flat64~symmetric~float32~minmax",
    "nf4_block256",
)
ROWS = [
    (target, scheme.text)
    for target, row in EXPORTS.items()
    for scheme in (*SCHEMES.values(), *map(Scheme.parse, SPELLED))
    if plain_dtype(scheme) is None and not row.refusal(scheme, SHAPE)
]


def hard_weight(scale: float) -> Tensor:
    """With a row of zeros, an outlier, a row of positive values only (whose zero point is the lowest code)
    and one of negative ones."""
    x = scale * torch.randn(SHAPE)
    x[3], x[5, 7] = 0, 40 * scale
    x[6], x[7] = x[6].abs() + scale, -x[7].abs() - scale
    return x


@pytest.mark.parametrize(("target", "text"), ROWS, ids=lambda part: str(part))
def test_the_readers_weight_is_ours(target: str, text: str, tmp_path: Path) -> None:
    """Bit for bit in the dtype that the reader restores to."""
    scheme = Scheme.parse(text)
    q = quantize(hard_weight(0.1), scheme)
    read, dtype = reader_of(target)
    weight = read(write_one(target, q, tmp_path / "one", NAME), scheme)
    assert torch.equal(weight.to(dtype(scheme)), q.dequantize(dtype(scheme)))


@pytest.mark.parametrize(("target", "text"), ROWS, ids=lambda part: str(part))
def test_bits_are_those_of_the_file(target: str, text: str, tmp_path: Path) -> None:
    """Of a model in float32, to 1 %: a budget that is kept by other bits than the file's is none."""
    scheme = Scheme.parse(text)
    path = write_one(target, quantize(hard_weight(0.1), scheme), tmp_path / "one", NAME)
    said = EXPORTS[target].stored_bits(scheme, SHAPE, torch.float32)
    assert 8 * bytes_in(path) / math.prod(SHAPE) == pytest.approx(said, rel=0.01)


@pytest.mark.parametrize("target", EXPORTS)
def test_every_target_is_read(target: str) -> None:
    """And carries something: a row that nothing reads back has not been seen to work."""
    assert callable(reader_of(target)[0]) and any(target == row for row, _ in ROWS)


def test_a_target_without_a_reader_is_told_which_file_to_add() -> None:
    with pytest.raises(
        pytest.fail.Exception, match=r"'npz-folder' back: add tests/.*/readers/npz_folder\.py"
    ):
        reader_of("npz-folder")


@pytest.mark.parametrize("target", EXPORTS)
def test_no_refusal_is_silent(target: str) -> None:
    """What a target does not carry has a reason, in words, and no row fails to be judged."""
    for scheme in SCHEMES.values():
        why = EXPORTS[target].refusal(scheme, SHAPE)
        assert not why or (len(why) > 20 and why[0].islower())
    assert EXPORTS[target].refusal(SCHEMES["bf16"], (3, 5)) == ""
