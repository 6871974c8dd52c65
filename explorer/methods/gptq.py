"""GPTQ: round one column at a time, and let the columns still to come compensate for the error.

E. Frantar et al., "GPTQ: Accurate Post-Training Quantization for Generative Pre-trained Transformers",
arXiv 2210.17323. The layer's loss ‖(W - Ŵ)X‖² has the Hessian H = 2XXᵀ for every row of W. The error of
rounding column q is best compensated in the remaining columns by (their equation 2)

    δ = -(w_q - quant(w_q)) / [H⁻¹]_qq · (H⁻¹)_{q,:}

The rows of H⁻¹ that it needs, each after the columns before it were removed, are those of one upper Cholesky
factor U of H⁻¹ = UᵀU (their step 3). ``_Columns.round_blocks`` is their Algorithm 1: the effect of a block of
columns on all later columns is added at once (their step 2), which saves time and changes nothing else.

H is damped: a share of its mean diagonal is added to its diagonal. The paper's share of 0.01 is too small for
a few hundred tokens, and a larger one is wrong where one input channel dominates. It is therefore chosen by
the error of the output on tokens that H has not seen.

GPTAQ (Y. Li et al., "GPTAQ: Efficient Finetuning-Free Quantization for Asymmetric Calibration", arXiv
2504.02692) minimises ‖ŴX̂ - WX‖² instead. The layer gets X̂ from the layers quantized before it, and should
give the output that it gave for X. H is that of X̂, and the columns after q also compensate for
w_q(X - X̂)_q, by the least squares solution w_q·P_q with

    P_q = (X - X̂)_q X̂_Fᵀ (X̂_F X̂_Fᵀ)⁻¹,   F the columns after q,   P = ((X - X̂)X̂ᵀUᵀ above the diagonal)·U
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, field
from enum import Enum
from functools import partial

import torch
from torch import Tensor

from explorer.core.quantize import find_ranges, quantize_with_scales
from explorer.methods.column_scales import ColumnScales, finds_scales_together
from explorer.methods.layer import QuantizedLayer, check_layer
from explorer.progress import Progress, checkpoint
from explorer.schemes import Scheme

DAMPINGS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)
"""Candidate dampings, as shares of the Hessian's mean diagonal."""
CHOICE_ROWS = 128
"""Evenly spaced rows of the weight on which the damping is chosen: output channels agree on it."""
CHOICE_ELEMENTS = 1 << 27
"""Elements of the Cholesky factors (1 GiB in float64) of dampings that are tried side by side."""
RETRIES = 6
SMALL_TRIANGLE = 128
RUN = 16
"""Columns of a block that are rounded before the rest of the block is updated."""
SNAPSHOTS, SNAPSHOT_ROWS = 12, 24
KEPT_ELEMENTS = 1 << 27
"""Limit on the elements of the matrices that ``same_inputs`` keeps (1 GiB in float64)."""


class Order(Enum):
    """Order in which columns are rounded: more columns can compensate for those that are rounded early.

    COLUMNS  as in the weight
    ENERGY   by falling energy of the activations ("act-order"), under static groups, so that no index of each
             column's group has to be stored (the reference code's ``static_groups``)
    GROUPS   by falling energy within each group, and groups by their largest (group-aware reordering, GAR:
             T. Gafni et al., arXiv 2505.14638): groups stay whole, and get their scales as in COLUMNS
    """

    COLUMNS = "columns"
    ENERGY = "energy"
    GROUPS = "groups"

    def permutation(self, energy: Tensor, group: int) -> Tensor:
        """int64 [K]: the columns in this order, by their ``energy`` [K]; ``group`` columns share a scale."""
        columns = torch.arange(len(energy), device=energy.device)
        if self is Order.COLUMNS:
            return columns
        by_energy = torch.argsort(energy, descending=True, stable=True)
        if self is Order.ENERGY:
            return by_energy
        of_group = columns // group
        largest = energy.new_zeros(int(of_group[-1]) + 1).scatter_reduce(0, of_group, energy, "amax")
        rank = torch.argsort(torch.argsort(largest, descending=True, stable=True))
        return by_energy[torch.argsort(rank[of_group[by_energy]], stable=True)]


@dataclass(frozen=True, eq=False)
class _Inputs:
    """A layer's inputs X̂ = ``seen`` [tokens, K]; X = ``original`` if the output for other inputs is
    wanted."""

    seen: Tensor
    original: Tensor | None = None

    @property
    def wanted(self) -> Tensor:
        return self.seen if self.original is None else self.original

    @property
    def place(self) -> tuple[object, ...]:
        """Key that is the same for the same inputs, as long as they are not freed."""
        both = [self.seen] if self.original is None else [self.seen, self.original]
        return tuple((x.device, x.data_ptr(), x.dtype, *x.shape) for x in both)

    def part(self, tokens: slice) -> _Inputs:
        return _Inputs(self.seen[tokens], None if self.original is None else self.original[tokens])


@dataclass(eq=False)
class _Memo:
    """Cached Hessians and their factors, and the damping by order. ``held`` keeps the inputs alive, so that
    no others can be allocated in their place."""

    held: dict[tuple[object, ...], _Inputs] = field(default_factory=dict)
    matrices: dict[tuple[object, ...], Tensor] = field(default_factory=dict)
    damping: dict[tuple[object, ...], float] = field(default_factory=dict)


_MEMO: ContextVar[_Memo | None] = ContextVar("memo", default=None)


@contextmanager
def same_inputs() -> Iterator[None]:
    """Share work between schemes that are tried on the same inputs, which must not change meanwhile: each
    Hessian is factored once, and damping is chosen once for each order of columns, by the first scheme."""
    token = _MEMO.set(_Memo())
    try:
        yield
    finally:
        _MEMO.reset(token)


def _kept(key: tuple[object, ...], compute: Callable[[], Tensor]) -> Tensor:
    """Return the result of ``compute``, cached by ``key`` under ``same_inputs``."""
    memo = _MEMO.get()
    if memo is None:
        return compute()
    if key in memo.matrices:
        return memo.matrices[key]
    matrix = compute()
    if matrix.numel() + sum(one.numel() for one in memo.matrices.values()) <= KEPT_ELEMENTS:
        memo.matrices[key] = matrix
    return matrix


def hessian(activations: Tensor) -> Tensor:
    """float64 [K, K]: (2/n) Σ x xᵀ of activations [n, K]."""
    x = activations.double()
    return x.t() @ x * (2 / len(x))


def gptq(
    weight: Tensor,
    scheme: Scheme,
    activations: Tensor,
    progress: Progress | None = None,
    *,
    original: Tensor | None = None,
    damping: float | None = None,
    order: Order = Order.COLUMNS,
    block: int | None = None,
) -> QuantizedLayer:
    """Quantize ``weight`` [N, K] for the inputs ``activations`` [tokens, K] under a scheme of rows or row
    groups.

    ``damping`` times the Hessian's mean diagonal is added to its diagonal, ten times as much after each
    failed Cholesky factorisation. None chooses the one of ``DAMPINGS`` with the smallest error of the output
    on the second half of the tokens, fitted to the first half on ``CHOICE_ROWS`` rows; these relative errors
    are the ``objective``. The layer itself is then fitted to all tokens.

    ``block`` columns are rounded between two updates of the rest. ``snapshots`` are the first 24 rows after
    every k-th block, about a dozen in all, in the order in which columns are rounded: dequantized columns,
    then updated weights. Schemes with quantized or searched scales use those of the original weight; the mean
    squares of the inputs weight llama.cpp's search. ``original``: see ``gptaq``. ``ValueError`` for schemes
    with blocks that span rows or without scales, and for shapes that do not match.
    """
    inputs = _Inputs(activations, original)
    _check(weight, scheme, inputs)
    w = weight.float()
    k, largest = w.shape[1], w.abs().amax()
    block = block or min(128, max(16, k // SNAPSHOTS))
    report = _part_of(progress, 0, 1)
    objective: tuple[float, ...] = ()
    memo, key = _MEMO.get(), (inputs.place, order)
    if memo is not None:
        memo.held[inputs.place] = inputs
        damping = memo.damping.get(key) if damping is None else damping
    if damping is None:
        objective = _held_out_errors(w, scheme, inputs, order, block, _part_of(progress, 0, 2))
        damping = DAMPINGS[objective.index(min(objective))] if objective else DAMPINGS[-1]
        report = _part_of(progress, 1, 2)
        if memo is not None:
            memo.damping[key] = damping
    columns = _Columns(w, scheme, inputs, order, (damping,), largest)
    stride, snapshots = -(-k // block // SNAPSHOTS) * block, []
    for done in columns.round_blocks(block):
        if done % stride == 0 or done == k:
            rows = torch.cat([columns.q[0, :done, :SNAPSHOT_ROWS], columns.w[0, done:, :SNAPSHOT_ROWS]])
            snapshots.append(rows.t().float().cpu())
        report(done, k)
    nearest = dataclasses.replace(scheme, least_squares_scale=False)
    codes = quantize_with_scales(columns.rounded()[0].float().contiguous(), nearest, columns.scales.all())
    return QuantizedLayer(codes, objective=objective, snapshots=torch.stack(snapshots))


def gptaq(
    weight: Tensor,
    scheme: Scheme,
    activations: Tensor,
    original: Tensor,
    progress: Progress | None = None,
    *,
    damping: float | None = None,
    order: Order = Order.ENERGY,
    block: int | None = None,
) -> QuantizedLayer:
    """Quantize by GPTAQ: ``gptq`` for inputs ``activations`` [tokens, K] of a partly quantized model, towards
    the layer's output in the original model, where the inputs of the same tokens were ``original`` [tokens,
    K].

    Equal inputs give the result of ``gptq``.
    """
    return gptq(
        weight, scheme, activations, progress, original=original, damping=damping, order=order, block=block
    )


def _check(weight: Tensor, scheme: Scheme, inputs: _Inputs) -> None:
    check_layer(weight, inputs.seen)
    check_layer(weight, inputs.wanted)
    if len(inputs.seen) != len(inputs.wanted):
        raise ValueError(
            "expected the inputs of the same tokens in both models, got "
            f"{len(inputs.seen)} and {len(inputs.wanted)}"
        )
    if scheme.scale is None or scheme.block[0] != 1:
        raise ValueError(f"GPTQ quantizes rows, or groups along them; {scheme.label} is something else")
    find_ranges(weight.float(), scheme)  # its error for too large a range names the column of the layer


class _Columns:
    """The columns of a weight as Algorithm 1 works on them, for several dampings side by side.

    w        float64 [dampings, K, N]  the weight, transposed and in ``order``, as updated so far
    q        the same                  its columns rounded so far
    errors   the same                  their errors over [U]_jj
    inverse  [dampings, K, K]          U, upper Cholesky factor of the damped Hessian's inverse
    pull     the same                  GPTAQ's P; None for GPTQ
    """

    def __init__(
        self,
        weight: Tensor,
        scheme: Scheme,
        inputs: _Inputs,
        order: Order,
        dampings: Sequence[float],
        largest: Tensor,
    ) -> None:
        h = _kept((inputs.place, "hessian"), lambda: hessian(inputs.seen))
        energy = torch.diagonal(h).clone()
        dead = energy == 0
        mean = float(energy.sum() / (~dead).sum()) if not bool(dead.all()) else 1.0

        group = scheme.block[1] or weight.shape[1]
        self.order = order.permutation(energy, group)
        self.scales = ColumnScales(scheme, (self.order // group).tolist(), largest)
        if order is Order.ENERGY or finds_scales_together(scheme):
            self.scales.add_all(weight, energy / 2)

        def factor(damping: float) -> Tensor:
            alive = h.clone()
            alive[dead, dead] = mean
            return _inverse_factor(self._ordered(alive), damping, mean)

        key = inputs.place, order, group if order is Order.GROUPS else None
        if len(dampings) == 1:
            self.inverse = _kept((*key, dampings[0]), partial(factor, dampings[0]))[None]
        else:  # the one that is chosen is factored again, for all tokens: none of these is kept
            self.inverse = h.new_empty(len(dampings), *h.shape)
            for one, damping in zip(self.inverse, dampings, strict=True):
                one.copy_(factor(damping))
        self.pull = None
        if inputs.original is not None:
            seen = inputs.seen.double()
            asymmetry = (inputs.original.double() - seen).t() @ seen * (2 / len(seen))  # (X - X̂)X̂ᵀ
            self.pull = (self._ordered(asymmetry) @ self.inverse.mT).triu(1) @ self.inverse
        self.w = weight.double().t()[self.order].expand(len(dampings), -1, -1).clone()
        self.q, self.errors = torch.empty_like(self.w), torch.empty_like(self.w)

    def _ordered(self, matrix: Tensor) -> Tensor:
        return matrix[self.order][:, self.order]

    def round_blocks(self, block: int) -> Iterator[int]:
        """Round ``block`` columns at a time (Algorithm 1); yields the number of rounded columns.

        Runs of ``RUN`` columns do the same within a block: what a run leaves for the rest of its block is one
        product, not one for each column.
        """
        k = self.w.shape[1]
        for start in range(0, k, block):
            checkpoint()
            whole = slice(start, min(start + block, k))
            for first in range(start, whole.stop, RUN):
                run = slice(first, min(first + RUN, whole.stop))
                self._round_run(run, whole)
                rest = slice(run.stop, whole.stop)
                self._compensate(self.w[:, rest], rest, by=run)
            rest = slice(whole.stop, k)
            self._compensate(self.w[:, rest], rest, by=whole)
            yield whole.stop

    def _round_run(self, run: slice, block: slice) -> None:
        """Round the columns ``run`` of a ``block`` one after another; the rest of the run compensates."""
        # Rows of U, and of P, above the diagonal alone, as [dampings, columns, 1]: a product with a whole
        # column of errors changes nothing left of it, and no view has to be cut for each.
        inverse, pull = (
            None if matrix is None else matrix[:, run, run].triu(1).mT[..., None].unbind(2)
            for matrix in (self.inverse, self.pull)
        )
        assert inverse is not None
        diagonal = torch.diagonal(self.inverse[:, run, run], dim1=1, dim2=2)[:, :, None].unbind(1)
        w, errors = self.w[:, run], self.errors[:, run]
        columns = zip(
            w.unbind(1), self.q[:, run].unbind(1), errors.unbind(1), errors.split(1, 1), strict=True
        )
        for i, (column, rounded, error, as_row) in enumerate(columns):
            j = run.start + i
            if width := self.scales.due(j):
                self.scales.add(j, self._group_at(j, width, (run, block)))
            rounded.copy_(self.scales.round(column, j))
            torch.sub(column, rounded, out=error).div_(diagonal[i])
            w.baddbmm_(inverse[i], as_row, alpha=-1)
            if pull is not None:
                w.baddbmm_(pull[i], column[:, None].clone())

    def _compensate(self, w: Tensor, columns: slice, by: slice) -> None:
        """Update ``w``, which holds ``columns``, for the rounding of the columns ``by`` before them."""
        w.baddbmm_(self.inverse[:, by, columns].mT, self.errors[:, by], alpha=-1)
        if self.pull is not None:
            w.baddbmm_(self.pull[:, by, columns].mT, self.w[:, by])

    def _group_at(self, j: int, width: int, within: Sequence[slice]) -> Tensor:
        """[dampings, width, N]: the weights of the group that begins at column j, as updated.

        Columns past the end of a run or block that j is ``within``, innermost first, have not yet received
        what its columns before j left: it is added to a copy here.
        """
        weights, done = self.w[:, j : j + width].clone(), j
        for part in within:
            if j + width > part.stop and part.start < done:
                late = weights[:, part.stop - j :]
                self._compensate(late, slice(part.stop, j + width), slice(part.start, done))
            done = part.start
        return weights

    def rounded(self) -> Tensor:
        """float64 [dampings, N, K]: the rounded weight, with its columns in the weight's own order."""
        values = torch.empty_like(self.q)
        values[:, self.order] = self.q
        return values.mT


def _inverse_factor(h: Tensor, damping: float, mean: float) -> Tensor:
    """float64 [K, K]: upper U with UᵀU = (H + damping · mean · 1)⁻¹, damped tenfold until H has a factor.

    With H's rows and columns reversed, H = LLᵀ; U is L⁻¹, reversed.
    """
    for _ in range(RETRIES):
        damped = h.flip(0, 1)
        torch.diagonal(damped).add_(damping * mean)
        factor, failed = torch.linalg.cholesky_ex(damped)
        del damped
        if not int(failed):
            return _lower_inverse(factor).flip(0, 1)
        damping = max(damping, 1e-4) * 10
    raise ValueError(
        "the activations' Hessian has no Cholesky factor even with strong damping: "
        "too few tokens, or values of wild size"
    )


def _lower_inverse(lower: Tensor) -> Tensor:
    """Invert a lower triangular matrix [K, K] by halves: a third of the work of solving for the identity, all
    of it in products."""
    k = len(lower)
    if k <= SMALL_TRIANGLE:
        identity = torch.eye(k, dtype=lower.dtype, device=lower.device)
        return torch.linalg.solve_triangular(lower, identity, upper=False)
    first, second = slice(0, k // 2), slice(k // 2, k)
    inverse = torch.zeros_like(lower)
    inverse[first, first] = _lower_inverse(lower[first, first])
    inverse[second, second] = _lower_inverse(lower[second, second])
    inverse[second, first] = -(inverse[second, second] @ lower[second, first] @ inverse[first, first])
    return inverse


def _held_out_errors(
    weight: Tensor, scheme: Scheme, inputs: _Inputs, order: Order, block: int, report: Progress
) -> tuple[float, ...]:
    """‖Y - Ŷ‖ / ‖Y‖ on the second half of the tokens, fitted to the first half, for each of ``DAMPINGS``.

    As many dampings are tried at once as memory allows, on some of the rows. Empty for a single token.
    """
    if len(inputs.seen) < 2:
        return ()
    n, k = weight.shape
    rows = weight[torch.linspace(0, n - 1, min(n, CHOICE_ROWS), device=weight.device).round().long()]
    half = len(inputs.seen) // 2
    fitted, held_out = inputs.part(slice(half)), inputs.part(slice(half, None))
    exact = held_out.wanted.double() @ rows.double().t()
    at_once = max(1, CHOICE_ELEMENTS // k**2)
    passes = [DAMPINGS[start : start + at_once] for start in range(0, len(DAMPINGS), at_once)]
    errors: list[float] = []
    for index, dampings in enumerate(passes):
        columns = _Columns(rows, scheme, fitted, order, dampings, weight.abs().amax())
        for done in columns.round_blocks(block):
            _part_of(report, index, len(passes))(done, k)
        lost = (held_out.seen.double() @ columns.rounded().mT - exact).square().sum((1, 2))
        errors += (lost / exact.square().sum().clamp(min=1e-300)).sqrt().tolist()
    return tuple(errors)


def _part_of(progress: Progress | None, part: int, parts: int) -> Progress:
    """Progress of one of several equal parts of an operation."""

    def report(done: int, total: int) -> None:
        if progress is not None:
            progress((part * total + done) // parts, total)

    return report
