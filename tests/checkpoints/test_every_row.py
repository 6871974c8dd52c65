"""Every scheme that a target carries, read back by the program that the target is for.

If these fail, that program computes with another weight than the one that was measured here.
"""

from __future__ import annotations

from pathlib import Path

import pytest
import torch
from torch import Tensor

from explorer import SCHEMES, Scheme, quantize
from explorer.checkpoints import EXPORTS, write_one
from explorer.checkpoints.export import plain_dtype
from explorer.checkpoints.to_compressed_tensors import layout_of
from tests.checkpoints.readers import NAME, READERS

SHAPE = (128, 512)
SPELLED = (
    "int8~1x64~ASYMMETRIC~float16~minmax",
    "int5~1x32~SYMMETRIC~float16~minmax",
    "int4~1x16~ASYMMETRIC~bfloat16~mse",
    "int7~row~SYMMETRIC~float32~minmax",
    "int4~1x64~NO_CLIP~float16~minmax~fit",
    "float8_e4m3fn~128x128~SYMMETRIC~bfloat16~minmax",
    "nf4~flat64~SYMMETRIC~float32~minmax",
    "nf4_block256",
)
ROWS = [
    (target, scheme.text)
    for target, row in EXPORTS.items()
    for scheme in (*SCHEMES.values(), *map(Scheme.parse, SPELLED))
    if plain_dtype(scheme) is None and not row.refusal(scheme, SHAPE)
]


def weight(scale: float) -> Tensor:
    """With a row of zeros, an outlier, a row of positive values only (whose zero point is the lowest code)
    and one of negative ones."""
    x = scale * torch.randn(SHAPE)
    x[3], x[5, 7] = 0, 40 * scale
    x[6], x[7] = x[6].abs() + scale, -x[7].abs() - scale
    return x


def read_as(target: str, scheme: Scheme) -> torch.dtype:
    """What the reader restores to."""
    if target in ("gptq", "awq"):
        return torch.float16
    layout = layout_of(scheme) if target == "compressed-tensors" else None
    return torch.bfloat16 if layout is not None and layout.bfloat16 else torch.float32


@pytest.mark.parametrize(("target", "text"), ROWS, ids=lambda part: str(part))
def test_the_readers_weight_is_ours(target: str, text: str, tmp_path: Path) -> None:
    """Bit for bit in the dtype that the reader restores to."""
    scheme = Scheme.parse(text)
    q = quantize(weight(0.1), scheme)
    read = READERS[target](write_one(target, q, tmp_path / "one", NAME), scheme)
    assert torch.equal(read.to(read_as(target, scheme)), q.dequantize(read_as(target, scheme)))


def test_every_target_is_read() -> None:
    """And carries something: a row that nothing reads back has not been seen to work."""
    assert set(READERS) == set(EXPORTS) == {target for target, _ in ROWS}


@pytest.mark.parametrize("target", EXPORTS)
def test_no_refusal_is_silent(target: str) -> None:
    """What a target does not carry has a reason, in words, and no row fails to be judged."""
    for scheme in SCHEMES.values():
        why = EXPORTS[target].refusal(scheme, SHAPE)
        assert not why or (len(why) > 20 and why[0].islower())
    assert EXPORTS[target].refusal(SCHEMES["bf16"], (3, 5)) == ""
