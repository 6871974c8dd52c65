"""Time of a model's linear layers in one step, by the scheme of each: the costs for a budget of time.

A step multiplies ``batch`` tokens (one of each text that is decoded at once) by every linear layer. Each
layer is the product X [batch, K] · W [N, K]ᵀ, timed in a recording or on the GPU that is here now
(``StepTimes``). A shape that was not recorded takes the time of the nearest one, scaled by the limit
(``explorer.products.shape_times.scaled``), and the step says so. Attention, norms and sampling take the same
time under every recipe, and are not counted.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Literal

from explorer import words
from explorer.methods.recipe import Recipe
from explorer.models.kinds import fused_groups
from explorer.products.advice import products_of, stored_as
from explorer.products.gemms import GEMMS
from explorer.products.shape_times import ShapeTime, product_time, scaled
from explorer.progress import checkpoint
from explorer.recordings.gemm import recorded_gemms
from explorer.schemes import SCHEMES, Scheme

Weight = tuple[int, int]
"""Shape of a weight: N and K."""
UNQUANTIZED = SCHEMES["bf16"]
"""Scheme that layers count as that stay as they are, whatever dtype the file has: engines run them in 16
bits."""
How = Literal["recorded", "scaled", "modelled", "measured"]
_MOST_KNOWN = 1 << 14
"""Products whose times are kept: shapes are those of any file."""
_UNITS = {"s": 1.0, "ms": 1e-3, "us": 1e-6, "µs": 1e-6, "μs": 1e-6}
_NOT_COUNTED = "attention, norms and sampling are not counted: they are the same for every recipe"


@dataclass(frozen=True)
class PredictedTime:
    """Time of all linear layers of a model together in one step.

    seconds   of the step
    batch     number of tokens that the step multiplies
    machine   the GPU; ``date`` of its recording
    how       "recorded"; "scaled": at least one product's time is that of the nearest recorded shape, scaled
              by the limit; "measured" on this machine's GPU; "modelled" in files of earlier versions
    kept      number of linear layers that stay as they are, which count in bfloat16
    """

    seconds: float
    batch: int
    machine: str
    date: str = ""
    how: How = "recorded"
    kept: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not 0 < self.seconds < float("inf") or self.batch < 1:
            raise ValueError(f"a step takes a time above 0 with 1 token or more, not {self.seconds} s")

    @property
    def source(self) -> str:
        """Origin of the time: "NVIDIA H200, recorded", or "NVIDIA H200, scaled from the nearest recorded
        shapes"."""
        how = "scaled from the nearest recorded shapes" if self.how == "scaled" else self.how
        return f"{self.machine}, {how}"

    @property
    def described(self) -> str:
        """Describe in one line the time, its products, the machine, and the origin of the time."""
        of = f"{words.duration(self.seconds)} in a step of batch {self.batch:,} ({self.source})"
        return f"linear layers: {of}; {_NOT_COUNTED}"


@dataclass(frozen=True)
class CheckedTime:
    """Predicted time of a recipe's step, and the time measured on this machine's GPU. Without a GPU
    ``measured`` is None, and ``why`` gives the reason."""

    predicted: PredictedTime
    measured: PredictedTime | None
    why: str = ""

    @property
    def described(self) -> str:
        """Describe both times in one line."""
        batch = self.predicted.batch
        said = (
            f"linear layers in a step of batch {batch:,}: predicted {words.duration(self.predicted.seconds)} "
            f"({self.predicted.source})"
        )
        if self.measured is None:
            return f"{said}; {self.why}"
        off = self.predicted.seconds / self.measured.seconds - 1
        elsewhere = "" if self.measured.machine == self.predicted.machine else "; another GPU than predicted"
        return (
            f"{said}, measured {words.duration(self.measured.seconds)} ({self.measured.machine}{elsewhere}): "
            f"the prediction is {abs(100 * off):.0f} % {'longer' if off >= 0 else 'shorter'}"
        )


@dataclass(frozen=True, eq=False)
class StepTimes:
    """Times of products with ``batch`` tokens on one ``machine``.

    ``product`` gives the time for a weight [N, K] under a scheme, with inputs by another scheme (None:
    unquantized). ``how``: origin of times that are not scaled.
    """

    machine: str
    batch: int
    product: Callable[[Scheme, Weight, Scheme | None], ShapeTime]
    date: str = ""
    how: How = "recorded"
    _known: dict[tuple[Scheme, Weight, Scheme | None], ShapeTime] = field(default_factory=dict)

    def of(self, scheme: Scheme, shape: Weight, inputs: Scheme | None = None) -> ShapeTime:
        """Time the product with one weight [N, K], with the quantization of its inputs by ``inputs``. Its
        ``kind`` is "none", with a reason, if there is no time."""
        key = scheme, shape, inputs
        if (known := self._known.get(key)) is None:
            if len(self._known) >= _MOST_KNOWN:
                self._known.clear()
            known = self._known[key] = self.product(scheme, shape, inputs)
        return known

    def refusal(self, scheme: Scheme, shape: Weight, inputs: Scheme | None = None) -> str:
        """The reason why there is no time for a weight [N, K] under ``scheme`` with such inputs; "" if there
        is one."""
        time = self.of(scheme, shape, inputs)
        return f"no time of a step: {time.reason}" if time.seconds is None else ""

    def together(
        self, scheme: Scheme, shapes: Sequence[Weight], inputs: Scheme | None = None
    ) -> list[ShapeTime]:
        """Time the layers of one input and scheme: one product of all their rows, if they have the same K."""
        checkpoint()
        return [self.of(scheme, shape, inputs) for shape in joined(shapes)]

    def unquantized(self, shapes: Mapping[str, Weight], fused: bool) -> list[ShapeTime]:
        """Time the layers that stay as they are. ``ValueError`` if a product has no time."""
        groups = fused_groups(shapes) if fused else [(name,) for name in shapes]
        times = [t for g in groups for t in self.together(UNQUANTIZED, [shapes[name] for name in g])]
        missing = next((time for time in times if time.seconds is None), None)
        if missing is not None:
            raise ValueError(f"no time of the layers that stay as they are: {missing.reason}")
        return times

    def of_recipe(
        self,
        layers: Mapping[str, Recipe],
        shapes: Mapping[str, Weight],
        kept: Mapping[str, Weight],
        fused: bool,
        inputs: Mapping[str, Scheme] | None = None,
    ) -> PredictedTime:
        """Predict the step of a model whose ``layers`` have these ``shapes`` [N, K], together with the layers
        ``kept`` as they are. ``inputs``: layer -> scheme of its inputs. ``ValueError`` if a product has no
        time."""
        groups, seen = fused_groups(layers) if fused else [(name,) for name in layers], inputs or {}
        times = []
        for group in groups:
            pairs = {(layers[name].scheme, seen.get(name)) for name in group}
            parts = [group] if len(pairs) == 1 else [(name,) for name in group]
            for part in parts:
                own = seen.get(part[0])
                times += self.together(layers[part[0]].scheme, [shapes[name] for name in part], own)
        missing = next((time for time in times if time.seconds is None), None)
        if missing is not None:
            raise ValueError(missing.reason)
        every = [*times, *self.unquantized(kept, fused)]
        seconds = sum(time.seconds or 0.0 for time in every)
        how: How = "scaled" if any(time.kind == "scaled" for time in every) else self.how
        return PredictedTime(seconds, self.batch, self.machine, self.date, how, tuple(kept))


def joined(shapes: Sequence[Weight]) -> list[Weight]:
    """Join the weights of layers with one input, as engines do: one weight of all rows, if K is the same."""
    same = len({k for _, k in shapes}) == 1
    return [(sum(n for n, _ in shapes), shapes[0][1])] if same else list(shapes)


def recorded_times(batch: int) -> StepTimes:
    """Return the times of products with ``batch`` tokens on the recorded GPU; ``ValueError`` for a batch
    below 1."""
    if batch < 1:
        raise ValueError(f"a step multiplies at least 1 token, not {batch}")

    def product(scheme: Scheme, shape: Weight, inputs: Scheme | None) -> ShapeTime:
        return _recorded(scheme, inputs, (batch, *shape))

    machine = recorded_gemms().machine
    return StepTimes(machine.gpu, batch, product, machine.date)


def _recorded(scheme: Scheme, inputs: Scheme | None, shape: tuple[int, int, int]) -> ShapeTime:
    """Find the time of the product of weights under ``scheme`` and X by ``inputs``: a recorded one of that
    shape, else one that is scaled."""
    plain = scheme == UNQUANTIZED
    names = _products(scheme, None if plain else inputs)
    if not names:
        with_x = f" with inputs of {inputs}" if inputs is not None else ""
        return ShapeTime(shape, "none", reason=f"no kernel here multiplies weights stored like this{with_x}")
    every = [scaled(product_time(name, shape, quantize_x=inputs is not None and not plain)) for name in names]
    order = {"measured": 0, "scaled": 1, "none": 2}
    return min(every, key=lambda time: (order[time.kind], time.seconds or 0.0))


@lru_cache(maxsize=1024)
def _products(scheme: Scheme, inputs: Scheme | None) -> tuple[str, ...]:
    """Find the products of weights under ``scheme`` with such inputs. If a call quantizes X, its time is the
    product's and that of the quantization before it, as in a layer."""
    asked = None if inputs is None else stored_as(inputs)
    return tuple(
        name
        for name in products_of(scheme)
        if not GEMMS[name].dynamic
        and (GEMMS[name].x.scale is None if asked is None else stored_as(GEMMS[name].x) == asked)
    )


def seconds_of(text: str) -> float:
    """Read a time, "12ms", "800us" or "0.5 s", as seconds; ``ValueError`` for anything else."""
    found = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*(ms|us|µs|μs|s)\s*", text)
    if found is None or not float(found[1]) > 0:
        raise ValueError(f"{text[:40]!r} is no time: write it like 12ms or 800us")
    return float(found[1]) * _UNITS[found[2]]
