"""Others' claims about a GPU beside the recordings here, and the recorded machines.

A claim is a number from a text, not a measurement: it has a column of its own. The other columns are computed
from recordings.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import TypeVar

from explorer.products.advice import at_shape, fastest
from explorer.products.gemms import GEMMS
from explorer.products.shapes import SQUARE
from explorer.recordings.files import NOT_RECORDED, Recording
from explorer.recordings.gemm import LATER_NAME, LAYERS_NAME, GemmTiming, gemms_by_machine, recorded_gemms
from explorer.recordings.quantize import QuantizeTiming, quantize_recordings
from lab.tables import markdown

CLAIMED = "the quantization chapter of a CUDA tutorial (`cuda-kernel-tutorial`, DeepGEMM)"
CLAIMED_OF, RECORDED_TOO = "H100", "H200"
"""The GPU that the claims are of, and the one whose numbers stand beside: parts of their names."""
QUANTIZED = (4096, 4096)
Row = TypeVar("Row")


@dataclass(frozen=True)
class Claim:
    """A number that a text states without the program that measured it: what of, the product of ``GEMMS`` or
    the scheme that is its like here, and the number with its unit."""

    what: str
    name: str
    claimed: str


PRODUCTS = (
    Claim("FP8, fine-grained scales", "fp8_blockwise", "750 TFLOP/s"),
    Claim("BF16", "bf16", "400 TFLOP/s"),
)
SCHEMES = (
    Claim("per tensor", "fp8_e4m3_tensor", "2.5 TB/s"),
    Claim("fine-grained (blocks of 128)", "fp8_e4m3_1x128", "2.1 TB/s"),
)


def gemm_claims_table() -> str:
    """Products at 4096³: claimed, and recorded on the GPU that the claim is of and on the other."""
    every = [recorded_gemms(), *gemms_by_machine().values()]
    rows = []
    for claim in PRODUCTS:
        row = GEMMS[claim.name]
        rows.append([claim.what, row.label, claim.claimed, *_recorded(every, _tflops_of(claim.name))])
    return markdown(["claimed for", "product here", *_columns()], rows)


def quantize_claims_table() -> str:
    """Quantizing 4096×4096 to FP8 E4M3: the same columns."""
    every = quantize_recordings()
    rows = [
        [claim.what, f"`{claim.name}`", claim.claimed, *_recorded(every, _bandwidths_of(claim.name))]
        for claim in SCHEMES
    ]
    return markdown(["claimed for", "scheme here", *_columns()], rows)


def machines_table() -> str:
    """Every recording of products: machine, date, how many products and shapes, and its file."""
    first = {"gemm.json": recorded_gemms()} if recorded_gemms() else {}
    others = {
        f"{name}.json" if name in (LAYERS_NAME, LATER_NAME) else f"machines/{name}/gemm.json": recording
        for name, recording in gemms_by_machine().items()
    }
    rows = [
        [
            one.machine.chip,
            one.machine.date,
            str(len({t.gemm for t in one.rows})),
            str(len({t.shape for t in one.rows})),
            f"`{file}`",
        ]
        for file, one in {**first, **others}.items()
    ]
    return markdown(["machine", "date", "products", "shapes", "file"], rows or [[NOT_RECORDED, *[""] * 4]])


def _columns() -> list[str]:
    return [f"claimed ({CLAIMED_OF})", f"{CLAIMED_OF}, recorded", f"{RECORDED_TOO}, recorded"]


def _recorded(recordings: Iterable[Recording[Row]], words: Callable[[Sequence[Row]], str]) -> list[str]:
    """Return the recordings of each of the two GPUs, from any file."""
    every = list(recordings)
    return [
        words([row for one in every if gpu in one.machine.gpu for row in one.rows]) or NOT_RECORDED
        for gpu in (CLAIMED_OF, RECORDED_TOO)
    ]


def _tflops_of(product: str) -> Callable[[Sequence[GemmTiming]], str]:
    def words(rows: Sequence[GemmTiming]) -> str:
        here = [t for t in fastest(at_shape(rows, SQUARE)) if t.gemm == product]
        return f"{here[0].tflops:.0f} TFLOP/s" if here else ""

    return words


def _bandwidths_of(scheme: str) -> Callable[[Sequence[QuantizeTiming]], str]:
    def words(rows: Sequence[QuantizeTiming]) -> str:
        here = [
            f"{t.gigabytes_per_s / 1e3:.2f} TB/s from {t.dtype}"
            for t in rows
            if (t.scheme, t.operation, t.shape) == (scheme, "quantize", QUANTIZED)
        ]
        return ", ".join(here)

    return words
