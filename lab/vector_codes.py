"""Errors of lattice and trellis quantizers at two bits: QuIP#'s E8P and QTIP's bitshift trellis.

Errors only: there is no kernel and no checkpoint of them here, and no LDLQ or fine-tuning, with which both
papers round whole models. QuIP#: A. Tseng et al., arXiv 2402.04396. QTIP: A. Tseng et al., arXiv 2406.11235;
EXL3 (exllamav3) builds on it.

Both expect weights that look like independent normal numbers: a matrix is multiplied by a random Hadamard
matrix on either side (``core.hadamard``), which keeps lengths, and divided by its root mean square.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import cache, partial
from itertools import combinations_with_replacement, permutations
from pathlib import Path

import torch
from torch import Tensor

from explorer.core.hadamard import find_rotation
from explorer.core.quantize import quantize
from explorer.progress import checkpoint
from explorer.recordings.files import NOT_RECORDED, Recording, record, recorded
from explorer.recordings.machine import this_machine
from explorer.schemes import Scheme
from explorer.schemes.rules import SUPER_BLOCK
from explorer.schemes.scheme import label_of_text
from lab.conformance.cases import model_weights
from lab.tables import markdown

NAME = "vector-codes"
DECIBELS_A_BIT = 20 * math.log10(2)
"""The most that a bit can gain: the rate-distortion function of normal numbers is D = 2^-2R (Shannon)."""
_PARTS = ("self.query", "output.dense")
LAYERS = tuple(f"encoder.layer.0.attention.{part}.weight" for part in _PARTS)
LAYER_SHAPE = (384, 384)
"""Layers of all-MiniLM-L6-v2, each of this shape, whose signals and errors are summed."""
NORMAL, REAL = "normal", "layers"
SEQUENCE = 256
"""Weights that share a path through the trellis, as QTIP's tiles of 16 x 16 do."""
BITS = 2


@cache
def e8p_magnitudes() -> Tensor:
    """float32 [256, 8]: the magnitudes of E8P's points less their shift of 1/4.

    All vectors of odd halves with norm² at most 10 (227), and 29 of norm² 12, three 1/2 and five 3/2, which
    QuIP#'s code lists.
    """
    found = set()
    for sorted_vector in combinations_with_replacement((0.5, 1.5, 2.5, 3.5), 8):
        if sum(v * v for v in sorted_vector) <= 10:
            found |= set(permutations(sorted_vector))
    padding = [[0.5 if str(i) in triple else 1.5 for i in range(8)] for triple in _HALVES.split()]
    return torch.cat([torch.tensor(sorted(found)), torch.tensor(padding)])


_HALVES = (
    "123 023 013 012 367 357 347 356 346 345 267 257 247 256 246 245 167 157 147 156 146 045 067 057 047 "
    "056 046 014 237"
)
"""The positions of the three 1/2 in each of the 29."""


def nearest_e8p(x: Tensor) -> Tensor:
    """The nearest of E8P's 2^16 points to each row of float32 ``x`` [n, 8].

    A point is a row of ``e8p_magnitudes`` with signs that make its sum even, plus 1/4 or -1/4 in every place.
    """
    return torch.cat([_nearest_e8p(part) for part in x.split(1 << 12)])


def _nearest_e8p(x: Tensor) -> Tensor:
    checkpoint()
    c = e8p_magnitudes()
    odd = c.sum(1) % 2 == 1  # the sum is a whole number: changing one sign changes whether it is even
    best = torch.full((len(x),), math.inf)
    nearest = torch.empty_like(x)
    for shift in (0.25, -0.25):
        y = x - shift
        magnitude, negative = y.abs(), y < 0
        wrong = (negative.sum(1) % 2 == 1)[:, None] != odd
        cost, flipped = (magnitude[:, None] * c).min(2)
        distance = c.square().sum(1) - 2 * magnitude @ c.t() + 4 * cost * wrong
        least, which = distance.min(1)
        rows = torch.arange(len(x))
        signs = torch.where(negative, -1.0, 1.0)
        place = flipped[rows, which]
        signs[rows, place] *= torch.where(wrong[rows, which], -1.0, 1.0)
        least = least + y.square().sum(1)
        better = least < best
        best = torch.where(better, least, best)
        nearest = torch.where(better[:, None], c[which] * signs + shift, nearest)
    return nearest


def one_mad(bits: int) -> Tensor:
    """float32 [2^bits]: QTIP's 1MAD code of each state: the sum of the four bytes of a linear congruence."""
    x = torch.arange(1 << bits) * 34038481 + 76625530 & 0xFFFFFFFF
    total = torch.stack([x >> shift & 255 for shift in (0, 8, 16, 24)]).sum(0)
    return (total - 510).float() / 147.800537109375


def three_inst(bits: int) -> Tensor:
    """float32 [2^bits]: QTIP's 3INST code: the sum of two float16 numbers, whose signs, mantissas and lowest
    exponent bits are bits of a linear congruence."""
    x = torch.arange(1 << bits) * 89226354 + 64248484 & 0xFFFFFFFF
    mixed = x & 0x8FFF8FFF ^ 0x3B603B60
    halves = torch.stack([mixed & 0xFFFF, mixed >> 16]).to(torch.int32)
    halves = torch.where(halves >= 1 << 15, halves - (1 << 16), halves).to(torch.int16)
    return halves.view(torch.float16).float().sum(0)


def trellis(x: Tensor, code: Tensor, bits: int = BITS) -> Tensor:
    """The path of least squared error of each row of float32 ``x`` [n, steps] through the bitshift trellis: a
    state of log2(len(code)) bits takes ``bits`` new ones below at each step, and restores ``code`` of it.

    The last state's low bits are the first one's high bits (tail-biting), so that a value costs ``bits``: as
    QTIP does, a pass over the row rotated by half says which bits, and a second one is bound to them.
    """
    restored = torch.empty_like(x)
    group = max(1, GROUP // len(code))
    half = x.shape[1] // 2
    for start in range(0, len(x), group):
        part = x[start : start + group]
        free = _viterbi(part.roll(half, 1), code, bits)
        states = _viterbi(part, code, bits, free[:, half] >> bits)
        restored[start : start + group] = code[states]
    return restored


GROUP = 1 << 22
"""Costs that are held together."""


def _viterbi(x: Tensor, code: Tensor, bits: int, tail: Tensor | None = None) -> Tensor:
    """States int64 [n, steps] of the best paths; ``tail`` [n]: all but the lowest bits of the first state,
    which are all but the highest of the last one.

    Costs are [n, 2^bits, heads]: of the state with the lowest bits i below the others h at [:, i, h], so that
    all runs of memory are long.
    """
    (n, steps), new = x.shape, 1 << bits
    heads = len(code) >> bits  # the bits that two states after each other share
    levels = code.view(heads, new).t().contiguous()
    squares = levels.square()
    cost = squares - 2 * x[:, 0, None, None] * levels
    others = None if tail is None else torch.arange(heads) != tail[:, None]
    if others is not None:
        cost.masked_fill_(others[:, None], math.inf)
    choice = torch.empty(steps, n, heads, dtype=torch.uint8)
    for step in range(1, steps):
        checkpoint()
        least, choice[step] = _least_before(cost, bits)
        # The errors less x², which is the same for all states.
        cost = torch.addcmul(least[:, None], x[:, step, None, None], levels, value=-2).add_(squares)
    by_state = cost.transpose(1, 2).reshape(n, new, heads)  # the highest bits apart
    if others is not None:
        by_state = by_state.masked_fill(others[:, None], math.inf)
    path = torch.empty(n, steps, dtype=torch.int64)
    path[:, -1] = by_state.reshape(n, -1).argmin(1)
    rows = torch.arange(n)
    for step in range(steps - 1, 0, -1):
        shared = path[:, step] >> bits
        path[:, step - 1] = choice[step, rows, shared].long() * heads + shared
    return path


def _least_before(cost: Tensor, bits: int) -> tuple[Tensor, Tensor]:
    """The least costs [n, heads] of the states whose lower bits are each head, and the highest bits, uint8,
    of the state that has it."""
    n, new, heads = cost.shape
    highest = cost.view(n, new, new, heads // new).unbind(2)
    least, place = highest[0], torch.zeros(highest[0].shape, dtype=torch.uint8)
    for i, other in enumerate(highest[1:], 1):
        place.masked_fill_(other < least, i)
        least = torch.minimum(least, other)
    ordered = [part.transpose(1, 2).reshape(n, heads) for part in (least, place)]
    return ordered[0], ordered[1]


LLOYD_MAX = torch.tensor([-1.5104, -0.4528, 0.4528, 1.5104])
"""Four levels of least squared error for normal numbers (J. Max, 1960)."""


def lloyd_max(x: Tensor) -> Tensor:
    """Each value of ``x`` at the nearest of ``LLOYD_MAX``."""
    middles = (LLOYD_MAX[1:] + LLOYD_MAX[:-1]) / 2
    return LLOYD_MAX[torch.bucketize(x, middles)]


def _in_eights(x: Tensor) -> Tensor:
    return nearest_e8p(x.reshape(-1, 8)).view(x.shape)


def _in_sequences(x: Tensor, code: Callable[[int], Tensor], bits: int) -> Tensor:
    return trellis(x.reshape(-1, SEQUENCE), code(bits)).view(x.shape)


@dataclass(frozen=True)
class Code:
    """A quantizer of two bits for normal numbers: ``restore`` gives what is restored of a matrix of them,
    ``claim`` the mean squared error for N(0, 1) that a paper reports, as it prints it, empty without;
    ``like``: the code whose factor it has, for one that takes long to find its own."""

    label: str
    restore: Callable[[Tensor], Tensor]
    claim: str = ""
    like: str = ""


CODES: Mapping[str, Code] = {
    "lloyd_max": Code("four levels (Lloyd-Max)", lloyd_max, ".118"),
    "e8p": Code("E8P (QuIP#)", _in_eights, ".089"),
    "1mad_12": Code("trellis of 2¹² states, 1MAD", partial(_in_sequences, code=one_mad, bits=12)),
    "1mad_16": Code(
        "trellis of 2¹⁶ states, 1MAD (QTIP)",
        partial(_in_sequences, code=one_mad, bits=16), ".069", "1mad_12",
    ),
    "3inst_12": Code("trellis of 2¹² states, 3INST", partial(_in_sequences, code=three_inst, bits=12)),
    "3inst_16": Code(
        "trellis of 2¹⁶ states, 3INST (QTIP, EXL3)",
        partial(_in_sequences, code=three_inst, bits=16), ".069", "3inst_12",
    ),
}  # fmt: skip
"""Claims are those of QTIP's table of codes at two bits (arXiv 2406.11235)."""
SCHEMES_BESIDE = (
    "int2_group128_full",
    "int2~1x128~full~float16~mse~fit",
    "tq2_0",
    "int2_group32_asym",
    "q2_k",
    "int3_group128",
)
FACTORS = tuple(round(0.9 + 0.02 * i, 2) for i in range(26))
"""Factors that scale values of unit mean square to the magnitude of a code."""
TUNED_ON = 1 << 13


@dataclass(frozen=True)
class VectorRow:
    """Error of one code or scheme on normal values or real layers: ``sqnr_db``, signal over error summed over
    all, at ``bits`` of each value, signs of the Hadamard matrices and scales included; ``factor`` as in
    ``FACTORS``, 0 for schemes."""

    name: str
    of: str
    bits: float
    sqnr_db: float
    factor: float = 0.0

    @property
    def error(self) -> float:
        """Squared error over squared values."""
        return 10 ** (-self.sqnr_db / 10)

    @property
    def above_bound(self) -> float:
        """dB that normal numbers could have more at these bits, at best."""
        return DECIBELS_A_BIT * self.bits - self.sqnr_db


def rotated(w: Tensor, seed: int = 0) -> Tensor:
    """``w`` [N, K] times a random Hadamard matrix on either side."""
    sides = [find_rotation(size, seed + i) for i, size in enumerate(w.shape)]
    return sides[0].weight(sides[1].weight(w).t().contiguous()).t().contiguous()


def restored(x: Tensor, code: Code, factor: float) -> Tensor:
    """Matrix ``x`` by ``code`` under one float16 scale."""
    scale = (x.square().mean().sqrt() / factor).half().float()
    return code.restore(x / scale) * scale


def best_factor(code: Code) -> float:
    """The one of ``FACTORS`` with the least error on a few normal values."""
    x = torch.randn(TUNED_ON // SEQUENCE, SEQUENCE, generator=torch.Generator().manual_seed(1))
    return min(FACTORS, key=lambda factor: float((restored(x, code, factor) - x).square().sum()))


def run_vector_codes(model: str, names: Sequence[str] = tuple(CODES)) -> Iterator[VectorRow]:
    """Schemes, then codes, on 256 x 256 values of N(0, 1) and on ``LAYERS`` of a model; ``ValueError`` for
    other names of codes."""
    if unknown := [name for name in names if name not in CODES]:
        raise ValueError(f"no code {unknown[0]!r}; there are {', '.join(CODES)}")
    weights = dict(model_weights(model))
    tensors = {
        NORMAL: [torch.randn(256, 256, generator=torch.Generator().manual_seed(0))],
        REAL: [weights[name] for name in LAYERS],
    }
    for text in SCHEMES_BESIDE:
        scheme = Scheme.parse(text)
        for of, matrices in tensors.items():
            bits = _mean([scheme.bits_per_element((len(x), x.shape[1])).total for x in matrices])
            found = [quantize(x, scheme).dequantize() for x in matrices]
            yield VectorRow(text, of, bits, _sqnr(matrices, found))
    for name in names:
        code = CODES[name]
        factor = best_factor(CODES[code.like] if code.like else code)
        for of, matrices in tensors.items():
            bits = _mean([code_bits((len(x), x.shape[1]), of == REAL) for x in matrices])
            mixed = [rotated(x) if of == REAL else x for x in matrices]  # lengths of errors stay
            found = [restored(x, code, factor) for x in mixed]
            yield VectorRow(name, of, bits, _sqnr(mixed, found), factor)


def code_bits(shape: tuple[int, int], turned: bool) -> float:
    """Bits per value of a matrix of ``shape`` by any of ``CODES``: one float16 scale, and where it is
    ``turned`` the signs of both Hadamard matrices."""
    return BITS + (16 + sum(shape) * turned) / math.prod(shape)


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


def _sqnr(matrices: Sequence[Tensor], found: Sequence[Tensor]) -> float:
    signal = sum(float(x.double().square().sum()) for x in matrices)
    noise = sum(float((x - y).double().square().sum()) for x, y in zip(matrices, found, strict=True))
    return 10 * math.log10(signal / noise)


def record_vector_codes(model: str) -> Path:
    """Run ``run_vector_codes`` and write ``assets/measurements/vector-codes.json``."""
    return record(NAME, Recording(this_machine(torch.device("cpu"), ()), tuple(run_vector_codes(model))))


def recorded_vector_codes() -> Recording[VectorRow]:
    """The recorded rows; empty if there are none."""
    return recorded(NAME, VectorRow)


def vector_codes_table(rows: Sequence[VectorRow]) -> str:
    """Schemes and codes by their error on normal values, the largest first; below, what bits of schemes with
    a star count, which no GGUF file has."""
    by_name = {(row.name, row.of): row for row in rows}
    names = sorted({row.name for row in rows}, key=lambda name: (by_name[name, NORMAL].sqnr_db, name))
    lines, whole = [], []
    for name in names:
        normal, real = by_name[name, NORMAL], by_name.get((name, REAL))
        label = CODES[name].label if name in CODES else label_of_text(name)
        scheme = None if name in CODES else Scheme.parse(name)
        bits = scheme.bits_per_element(LAYER_SHAPE).total if scheme else code_bits(LAYER_SHAPE, True)
        star = scheme is not None and scheme.shortened(LAYER_SHAPE) != ""
        if scheme and star:
            in_whole = scheme.bits_per_element((LAYER_SHAPE[0], SUPER_BLOCK)).total
            whole.append(f"{label} {in_whole:g}")
        lines.append(
            [
                label,
                f"{bits:.3f}{'*' if star else ''}",
                f"{normal.sqnr_db:.2f} dB",
                f"{normal.above_bound:.2f} dB",
                f"{normal.error:.4f}",
                CODES[name].claim if name in CODES else "",
                f"{real.sqnr_db:.2f} dB" if real else NOT_RECORDED,
            ]
        )
    of_normal = ["normal values", "normal values: below the bound", "squared error", "claimed"]
    titles = ["bits of the layers", *of_normal, "two layers"]
    if not lines:
        return f"({NOT_RECORDED})"
    table = markdown(["", *titles], lines)
    if not whole:
        return table
    return (
        f"{table}\n\n\\* A row of {LAYER_SHAPE[1]} values is no whole number of blocks of {SUPER_BLOCK}: no "
        "GGUF file holds it, and the bits count a shorter last block. Bits of rows that are: "
        f"{'; '.join(whole)}."
    )


def error_of(rows: Sequence[VectorRow], name: str) -> str:
    """The recorded error of a code on normal values, as it stands in the table."""
    found = [row.error for row in rows if row.name == name and row.of == NORMAL]
    return f"{found[0]:.4f}" if found else f"({NOT_RECORDED})"


def in_words(rows: Sequence[VectorRow]) -> str:
    """State the gain of the best lattice and the best trellis over four levels per value, and the bits of the
    cheapest scheme that reaches the trellis."""
    normal = {row.name: row.sqnr_db for row in rows if row.of == NORMAL}
    real = {row.name: row for row in rows if row.of == REAL}
    if not set(CODES) <= set(normal):
        return ""
    best = max((name for name in CODES if name in real), key=lambda name: normal[name])
    text = (
        f"Compared with four levels for each value by itself, E8P has "
        f"{normal['e8p'] - normal['lloyd_max']:.1f} dB more and the best trellis "
        f"{normal[best] - normal['lloyd_max']:.1f} dB; {2 * DECIBELS_A_BIT - normal[best]:.1f} dB are left "
        "to the bound."
    )
    enough = [r for name, r in real.items() if name not in CODES and r.sqnr_db >= real[best].sqnr_db]
    if not enough:
        return f"{text} On the layers none of these schemes reaches the trellis."
    fewest = min(enough, key=lambda row: row.bits)
    return (
        f"{text} On the layers {label_of_text(fewest.name)} is the scheme of fewest bits here that reaches "
        f"the trellis, with {fewest.bits:.2f}."
    )
