"""Every scheme that a target carries, read back by the program that the target is for.

If these fail, that program computes with another weight than the one that was measured here.
"""

from __future__ import annotations

import math
from pathlib import Path

import pytest
import torch

from explorer import SCHEMES, Scheme, quantize
from explorer.checkpoints import EXPORTS, write_one
from tests.checkpoints.reading import NAME, bytes_in, hard_weight, reader_of, target_parts
from tests.covering import by_pairs

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
    if scheme.plain_dtype is None and not row.refusal(scheme, SHAPE)
]


@pytest.mark.parametrize(("target", "text"), by_pairs(ROWS, target_parts))
def test_the_readers_weight_is_ours(target: str, text: str, tmp_path: Path) -> None:
    """Bit for bit in the dtype that the reader restores to, in as many bits as are said, to 1 %."""
    scheme = Scheme.parse(text)
    q = quantize(hard_weight(0.1), scheme)
    read, dtype = reader_of(target)
    path = write_one(target, q, tmp_path / "one", NAME)
    assert torch.equal(read(path, scheme).to(dtype(scheme)), q.dequantize(dtype(scheme)))
    said = EXPORTS[target].stored_bits(scheme, SHAPE, torch.float32)
    assert 8 * bytes_in(path) / math.prod(SHAPE) == pytest.approx(said, rel=0.01)


def test_every_target_is_read_and_judges_every_scheme() -> None:
    """A row that nothing reads back has not been seen to work; a plain dtype fits every shape."""
    assert {target for target, _ in ROWS} == set(EXPORTS)
    for target, row in EXPORTS.items():
        assert callable(reader_of(target)[0]) and row.refusal(SCHEMES["bf16"], (3, 5)) == ""
        assert all(isinstance(row.refusal(scheme, SHAPE), str) for scheme in SCHEMES.values())
