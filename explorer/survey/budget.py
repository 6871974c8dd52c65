"""Find the best choice within a budget: the scheme of each layer, and its method if the survey has any, with
the least predicted loss.

Losses of layers add up, so that this is a multiple-choice knapsack over (layer, scheme). The budget is of
bits, or of the seconds of the layers' products (``explorer.survey.knapsack``). A ``Frontier`` answers every
budget; each ``Choice`` has a bound on how much better another one could be. Codes by a method take the bits
and the time of rounded ones, so that the cost of a scheme is its cost by the layer's best method, whatever
else is chosen.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from explorer import words
from explorer.checkpoints.target import Export
from explorer.methods.recipe import Recipe
from explorer.models.files import Role, matches
from explorer.models.kinds import fused_groups, has_one_scale, scheme_groups
from explorer.models.skeleton import is_expert
from explorer.progress import checkpoint
from explorer.schemes import Scheme
from explorer.schemes.scheme import todays_text
from explorer.survey.carried import bits_in_files, bytes_around, product_refusal
from explorer.survey.interval import predicted_interval
from explorer.survey.knapsack import HullPath, least_within
from explorer.survey.recipe import ModelRecipe
from explorer.survey.rows import Layer, Survey
from explorer.survey.sensitivities import SENSITIVITIES
from explorer.survey.times import PredictedTime, StepTimes

_BITS = re.compile(r"(\d+(?:\.\d+)?)\s*(?:bits?(?: per weight)?|bpw)?", re.IGNORECASE)
_SLACK = 1e-6
_TOLD = 2
"""Largest number of refusals in a message."""


@dataclass(frozen=True)
class Constraints:
    """Conditions that a recipe keeps to.

    schemes      the only schemes allowed (texts of the survey's schemes; empty: all)
    target       the checkpoint format that has to carry the recipe; None: schemes may be mixed freely. With a
                 format that holds codes of embeddings, these and the head are among the layers to choose for
    keep         layers whose names match one of these patterns (``models.files.matches``) stay as they are
    fuse         one scheme for query, key and value, and one for gate and up; the target's engine decides it
                 too, for the layers that it multiplies as one matrix
    inputs       the scheme of the inputs of layers of codes; None: not quantized
    keep_inputs  patterns of layers that keep their inputs as they are
    times        times of products: schemes without a time are left out, and a budget may be a time
    methods      the only methods of the survey allowed beside rounding to nearest; None: all
    """

    schemes: tuple[str, ...] = ()
    target: Export | None = None
    keep: tuple[str, ...] = ()
    fuse: bool = False
    inputs: Scheme | None = None
    keep_inputs: tuple[str, ...] = ()
    times: StepTimes | None = None
    methods: tuple[str, ...] | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schemes", tuple(dict.fromkeys(todays_text(text) for text in self.schemes)))

    @property
    def fused(self) -> bool:
        """True if layers that engines multiply as one matrix have one scheme."""
        return self.fuse or (self.target is not None and self.target.fused)

    def keeps(self, layer: Layer, named: Collection[str]) -> bool:
        """True for a layer that stays as it is; ``named``: those that match a pattern of ``keep``."""
        tables = self.target is not None and self.target.tables
        if layer.name in named or (layer.is_table and self.times is not None):
            return True
        return layer.role is not Role.LINEAR and not (tables and (layer.is_table or layer.role is Role.HEAD))

    def without_table(self, layer: Layer, named: Collection[str]) -> str:
        """The reason why ``layer`` stays as it is although nobody asked for that: it is a table of
        embeddings, and the target holds no codes of tables. Empty for other layers and targets."""
        if self.target is None or self.target.tables or self.times is not None:
            return ""
        told = layer.is_table and layer.name not in named
        return f"{self.target.label} has codes of linear layers alone" if told else ""

    def inputs_of(self, layers: Sequence[str]) -> dict[str, Scheme]:
        """The scheme of the inputs of each of ``layers`` whose inputs are quantized when it holds codes.
        Layers that are multiplied as one matrix keep their inputs together."""
        if self.inputs is None:
            return {}
        kept = {x for x in layers if any(matches(x, pattern) for pattern in self.keep_inputs)}
        groups = scheme_groups(layers, self.fused)
        return {x: self.inputs for group in groups if not kept & set(group) for x in group}


@dataclass(frozen=True)
class Choice:
    """A scheme for each layer, and in ``methods`` the method of each layer that is not rounded to nearest.

    ``bits``: mean bits per weight over these layers; ``bytes``: their size; ``loss``: the sum of their costs.
    No choice within the same budget costs less than ``loss - gap``. ``time``: of all linear layers in one
    step, if the constraints have times.
    """

    schemes: Mapping[str, str]
    bits: float
    bytes: int
    loss: float
    gap: float
    time: PredictedTime | None = None
    methods: Mapping[str, str] = field(default_factory=dict)

    def recipe(self, layer: str) -> Recipe:
        """The scheme and the method of ``layer``."""
        return Recipe(Scheme.parse(self.schemes[layer]), self.methods.get(layer, ""))


@dataclass(frozen=True)
class Uniform:
    """One scheme for all layers, each by its best method. ``seconds``: as in ``TimeFrontier``."""

    scheme: str
    bits: float
    loss: float
    seconds: float | None = None


@dataclass(frozen=True, eq=False)
class TimeFrontier:
    """The least loss for every budget of time.

    ``seconds`` of the linear layers in a step and ``loss`` [points], from the shortest time on. ``kept``:
    linear layers that no scheme is chosen for, which take ``rest`` seconds. ``inputs`` and ``shapes``
    describe the other layers.
    """

    times: StepTimes
    seconds: np.ndarray
    loss: np.ndarray
    rest: float
    kept: Mapping[str, tuple[int, int]]
    shapes: Mapping[str, tuple[int, int]]
    inputs: Mapping[str, Scheme]
    fused: bool

    @property
    def least(self) -> float:
        """The shortest time that a budget can ask for, in seconds."""
        return float(self.seconds[0])

    @property
    def most(self) -> float:
        """The time beyond which a larger budget gains nothing, in seconds."""
        return float(self.seconds[-1])

    def of(self, schemes: Mapping[str, str]) -> PredictedTime:
        """Compute the time of a step with these schemes of layers."""
        recipes = {name: Recipe(Scheme.parse(text)) for name, text in schemes.items()}
        coded = {x: one for x, one in self.inputs.items() if recipes[x].scheme.plain_dtype is None}
        return self.times.of_recipe(recipes, self.shapes, self.kept, self.fused, coded)


@dataclass(frozen=True, eq=False)
class Frontier:
    """The least loss for every budget.

    bits, loss     [points]: the frontier, from the smallest size on
    uniform        single schemes that all layers can have
    refused        scheme that some layer cannot have -> the reason
    left           layer that no scheme serves, and that stays as it is -> the reason
    kept_bytes     size of all tensors that no scheme is chosen for, as they are stored; if ``in_files``, of
                   everything in the target's files beside the codes
    weights        number of the layers' weights
    methods        layer -> scheme -> the method with the least predicted loss, if it is not rounding
    weights_alone  True if inputs are quantized, which the losses leave out
    by_time        the frontier for budgets of time, if the constraints have times
    """

    signal: str
    bits: np.ndarray
    loss: np.ndarray
    uniform: tuple[Uniform, ...]
    refused: Mapping[str, str]
    left: Mapping[str, str]
    kept_bytes: int
    in_files: bool
    weights: int
    methods: Mapping[str, Mapping[str, str]]
    weights_alone: bool
    by_time: TimeFrontier | None
    _tables: tuple[_Table, ...]

    @property
    def least(self) -> float:
        """The fewest bits per weight that a budget can ask for."""
        return float(self.bits[0])

    @property
    def most(self) -> float:
        """The bits per weight beyond which a larger budget gains nothing."""
        return float(self.bits[-1])

    @property
    def room(self) -> int:
        """Bytes that it may come to have beside its own, for choices that were found."""
        paths = (path for table in self._tables for path in (table.by_bits, table.by_time))
        return sum(path.room for path in paths if path is not None)

    def at(self, bits: float) -> Choice:
        """Return the best choice of at most ``bits`` a weight; ``ValueError`` below ``least``."""
        found = self._best((bits + _SLACK) * self.weights, lambda table: table.by_bits)
        if found is None:
            raise ValueError(too_few_bits(bits, self.least))
        return found

    def at_time(self, seconds: float) -> Choice:
        """Return the best choice whose linear layers take at most ``seconds`` in a step; ``ValueError`` below
        the least time, which it names."""
        front = self.by_time
        if front is None:
            raise ValueError("a budget of time needs times of products: constraints with times")
        found = self._best(seconds - front.rest, lambda table: table.timed)
        if found is None:
            stays = f", {words.duration(front.rest)} of it of layers left as they are" if front.rest else ""
            raise ValueError(
                f"{words.duration(seconds)} are less than the linear layers take by these schemes: "
                f"{words.duration(_rounded_up(front.least), 4)} at least{stays} (batch {front.times.batch:,} "
                f"on {front.times.machine})"
            )
        return found

    def at_bytes(self, size: float) -> Choice:
        """Return the best choice for a whole model of at most ``size`` bytes, with everything that is kept as
        it is."""
        return self.at(self.bits_of(size))

    def bits_of(self, size: float) -> float:
        """Return the bits per weight for a whole model of at most ``size`` bytes; ``ValueError`` below the
        smallest size that these schemes reach."""
        least = self.kept_bytes + self.least * self.weights / 8
        if not size >= least:
            raise ValueError(
                f"by these schemes the model takes at least {least:,.0f} bytes; the budget is {size:,.0f}"
            )
        # ``at`` allows a little more than it is asked for, which is bytes of a large model.
        return max((size - self.kept_bytes) * 8 / self.weights - _SLACK, self.least)

    def _best(self, budget: float, path_of: Callable[[_Table], HullPath]) -> Choice | None:
        """Return the choice of the least loss of all families; None if none is within ``budget``."""
        solved = [(table, least_within(path_of(table), budget)) for table in self._tables]
        found = [(table, one) for table, one in solved if one is not None]
        if not found:
            return None
        table, best = min(found, key=lambda pair: pair[1].cost)
        schemes = table.schemes(best.chosen)
        size = table.by_bits.sizes[np.arange(len(best.chosen)), best.chosen].sum()
        by = {name: self.methods.get(name, {}).get(scheme, "") for name, scheme in schemes.items()}
        return Choice(
            schemes,
            float(size / self.weights),
            round(size / 8),
            best.cost,
            max(best.cost - min(one.bound for _, one in found), 0.0),
            self.by_time.of(schemes) if self.by_time else None,
            {name: method for name, method in by.items() if method},
        )


def too_few_bits(bits: float, least: float) -> str:
    """Return the error for a budget of ``bits`` per weight that is below ``least``."""
    return f"these schemes take at least {least:.4g} bits per weight; the budget is {bits:g}"


def budget_of(text: str, front: Frontier) -> tuple[float, bool]:
    """Read a budget in words: bits per weight, "4.5" or "4.5 bits"; or, with True, bytes of the whole model,
    "90 MB".

    ``ValueError`` for anything else, and for a size below the smallest choice of ``front``.
    """
    if (bits := _BITS.fullmatch(text.strip())) is not None:
        return float(bits[1]), False
    if _BITS.fullmatch(pointed := text.strip().replace(",", ".")):
        raise ValueError(f"{text[:40]!r} has a comma: write {pointed[:40]}, with a point")
    try:
        size = words.byte_size(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a budget: write it like 4.5 bits or 90 MB") from None
    front.bits_of(size)
    return size, True


def frontier(survey: Survey, signal: str = "", constraints: Constraints | None = None) -> Frontier:
    """Compute the frontier of size against the cost by ``signal`` (the survey's default if empty). Layers for
    which the constraints allow no scheme stay as they are (``Frontier.left``).

    ``ValueError`` for an incomplete survey, a signal, scheme or method that it lacks, a pattern that matches
    no layer, and constraints that leave no layer.
    """
    kept_to, signal = constraints or Constraints(), signal or survey.head.default
    named = _check_asked(survey, signal, kept_to)
    names = kept_to.schemes or survey.head.schemes
    asked = [layer for layer in survey.linear if not kept_to.keeps(layer, named)]
    if not asked:
        raise ValueError(f"no layer of {survey.head.model} is left to choose a scheme for")
    inputs = kept_to.inputs_of([layer.name for layer in asked])
    refusals = _refusals(asked, names, inputs, kept_to)
    families = _families(names, kept_to.target)
    left = _left(asked, families, refusals, kept_to.fused)
    layers = [layer for layer in asked if layer.name not in left]
    if not layers:
        raise ValueError(_none_left(survey, left, kept_to))
    left |= {x.name: why for x in survey.linear if (why := kept_to.without_table(x, named))}
    shapes = {layer.name: layer.shape for layer in layers}
    own_inputs = {name: inputs[name] for name in shapes if name in inputs}
    allowed = survey.head.methods if kept_to.methods is None else kept_to.methods
    methods = best_methods(survey, layers, signal, allowed, kept_to.fused)
    cells = _cells(survey, signal, layers, names, methods, refusals, kept_to)
    tables = _tables(layers, families, cells, own_inputs, kept_to)
    bits, loss = _best_points([table.by_bits for table in tables])
    weights = sum(layer.weights for layer in layers)
    by_time = _by_time(survey, tables, shapes, own_inputs, kept_to) if kept_to.times else None
    around = bytes_around(kept_to.target, survey, shapes)
    return Frontier(
        signal=signal,
        bits=bits / weights,
        loss=loss,
        uniform=_uniform(tables, names, weights, by_time.rest if by_time else 0.0),
        refused=_refused(layers, names, refusals),
        left=left,
        kept_bytes=_kept_bytes(survey, shapes, kept_to) if around is None else around,
        in_files=around is not None,
        weights=weights,
        methods=methods,
        weights_alone=kept_to.inputs is not None,
        by_time=by_time,
        _tables=tables,
    )


def check_complete(survey: Survey) -> None:
    """``ValueError`` for a survey that was stopped before its last layer."""
    if not survey.complete:
        raise ValueError(
            f"the survey of {survey.head.model} was stopped after {len(survey.layers)} of "
            f"{survey.head.layers} layers: let it go on first, by the same `explorer survey` command"
        )


def matched(survey: Survey, patterns: Sequence[str]) -> frozenset[str]:
    """Name the layers that match one of ``patterns``; ``ValueError`` for a pattern that matches none."""
    found = set[str]()
    for pattern in patterns:
        own = [layer.name for layer in survey.layers if matches(layer.name, pattern)]
        if not own and survey.linear:
            raise ValueError(
                f"no layer's name matches {pattern!r}: give a part of a name such as "
                f"{survey.linear[0].name}, or a pattern with * and ?"
            )
        found.update(own)
    return frozenset(found)


def _check_asked(survey: Survey, signal: str, kept_to: Constraints) -> frozenset[str]:
    """Name the layers that are kept; ``ValueError`` for a survey that was stopped, and for a request that it
    cannot answer."""
    check_complete(survey)
    for what, asked, known in (
        ("signal", (signal,), survey.head.signals),
        ("scheme", kept_to.schemes, survey.head.schemes),
        ("method", kept_to.methods or (), survey.head.methods),
    ):
        if missing := next((name for name in asked if name not in known), ""):
            raise ValueError(f"the survey has no {what} {missing!r}; it has {', '.join(known) or 'none'}")
    named = matched(survey, kept_to.keep)
    matched(survey, kept_to.keep_inputs)
    if kept_to.times is not None and any(is_expert(layer.name) for layer in survey.layers):
        raise ValueError(
            f"the time of a step is not known for {survey.head.model}: its experts are multiplied in groups, "
            "as many tokens each as are routed to it"
        )
    return named


def _refusals(
    layers: Sequence[Layer], names: Sequence[str], inputs: Mapping[str, Scheme], kept_to: Constraints
) -> dict[str, dict[str, str]]:
    """Return layer -> scheme that it cannot have -> the reason."""
    schemes = {name: Scheme.parse(name) for name in names}
    target, times, product = kept_to.target, kept_to.times, product_refusal(kept_to.target, kept_to.inputs)

    def why(layer: Layer, scheme: Scheme) -> str:
        own = inputs.get(layer.name) if scheme.plain_dtype is None else None
        found = target.refusal(scheme, layer.shape) if target else ""
        if not found and target and is_expert(layer.name):
            found = target.expert_refusal(scheme)
        if not found and own is not None:
            found = product(scheme)
        return found or (times.refusal(scheme, layer.shape, own) if times else "")

    found = {}
    for layer in layers:
        checkpoint()
        own = {name: why(layer, scheme) for name, scheme in schemes.items()}
        found[layer.name] = {name: said for name, said in own.items() if said}
    return found


def _families(names: Sequence[str], target: Export | None) -> list[tuple[str, ...]]:
    """Group the schemes that may be mixed in one model."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(target.family(Scheme.parse(name)) if target else "", []).append(name)
    return [tuple(group) for group in found.values()]


def _left(
    layers: Sequence[Layer],
    families: Sequence[tuple[str, ...]],
    refusals: Mapping[str, Mapping[str, str]],
    fused: bool,
) -> dict[str, str]:
    """Find the layers that no scheme serves, with the reasons; a group of layers is left as a whole. Of
    several families of schemes, the one that leaves the fewest weights decides."""
    weights = {layer.name: layer.weights for layer in layers}
    groups = scheme_groups(weights, fused)
    each = [_left_by(family, groups, refusals) for family in families]
    return min(each, key=lambda left: sum(weights[name] for name in left))


def _left_by(
    family: Sequence[str], groups: Sequence[tuple[str, ...]], refusals: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    found = {}
    for group in groups:
        checkpoint()
        if any(not any(name in refusals[layer] for layer in group) for name in family):
            continue
        worst = sorted(group, key=lambda x: len(refusals[x]), reverse=True)[:2]
        for layer in group:
            own = [f"{name}: {refusals[layer][name]}" for name in family if name in refusals[layer]]
            if len(own) == len(family):
                more = f"; and {len(own) - _TOLD} more" if len(own) > _TOLD else ""
                found[layer] = f"{'; '.join(own[:_TOLD])}{more}"
            else:
                other = next(x for x in worst if x != layer)
                found[layer] = f"no scheme serves it and the layers that share one with it, such as {other}"
    return found


def _none_left(survey: Survey, left: Mapping[str, str], kept_to: Constraints) -> str:
    """Return the message if no layer can have any of the schemes; it names schemes to survey for the
    target."""
    first, target = survey.layer(next(iter(left))), kept_to.target
    advice = ""
    if target is not None and target.usual:
        advice = f". Survey the model by schemes that {target.name} carries: {', '.join(target.usual)}"
    return (
        f"no layer of {survey.head.model} can have one of these schemes: {first.name} {list(first.shape)} is "
        f"left without a scheme: {left[first.name]}{advice}"
    )


def best_methods(
    survey: Survey, layers: Sequence[Layer], signal: str, allowed: Sequence[str], fused: bool
) -> dict[str, dict[str, str]]:
    """Return layer -> scheme -> the one of the ``allowed`` methods with the least predicted loss, unless that
    is rounding to nearest.

    Methods search layer by layer. If ``fused``, schemes with a scale of the whole tensor, which layers
    multiplied as one matrix share, are therefore rounded to nearest in such layers.
    """
    if not allowed or not SENSITIVITIES[signal].is_loss:
        return {}
    groups = fused_groups(layer.name for layer in layers) if fused else []
    joined = {name for group in groups if len(group) > 1 for name in group}
    shared = {text for text in survey.head.schemes if has_one_scale(Scheme.parse(text))}
    found: dict[str, dict[str, str]] = {}
    for layer in layers:
        checkpoint()
        best = {text: layer.best_method(text, allowed) for text in survey.head.schemes}
        left_out = shared if layer.name in joined else set()
        found[layer.name] = {text: by for text, by in best.items() if by and text not in left_out}
    return found


Cells = Mapping[str, Mapping[str, tuple[float, float]]]
"""Layer -> scheme that it can have -> (bits of the whole layer, cost)."""


def _cells(
    survey: Survey,
    signal: str,
    layers: Sequence[Layer],
    names: Sequence[str],
    methods: Mapping[str, Mapping[str, str]],
    refusals: Mapping[str, Mapping[str, str]],
    kept_to: Constraints,
) -> Cells:
    """Compute sizes in the target's files, and costs by each layer's best method."""
    stored = bits_in_files(kept_to.target, survey) if kept_to.target else None
    found: dict[str, dict[str, tuple[float, float]]] = {}
    for layer in layers:
        checkpoint()
        own, by = found.setdefault(layer.name, {}), methods.get(layer.name, {})
        for name in names:
            if name not in refusals[layer.name]:
                bits = stored(Scheme.parse(name), layer.shape) if stored else layer.bits[name]
                own[name] = bits * layer.weights, layer.cost(signal, name, by.get(name, ""))
    return found


@dataclass(frozen=True, eq=False)
class _Table:
    """Frontiers of one family of schemes, ``names``, over units: layers, or groups of layers with one scheme.

    ``by_bits``, and ``by_time`` in seconds if times are known. Both have the same costs, infinite for a
    scheme that a unit cannot have.
    """

    units: Sequence[tuple[str, ...]]
    names: tuple[str, ...]
    by_bits: HullPath
    by_time: HullPath | None

    @property
    def timed(self) -> HullPath:
        assert self.by_time is not None
        return self.by_time

    def schemes(self, chosen: np.ndarray) -> dict[str, str]:
        """The scheme of each layer, by the indices of the units' schemes."""
        return {x: self.names[i] for unit, i in zip(self.units, chosen, strict=True) for x in unit}


def _tables(
    layers: Sequence[Layer],
    families: Sequence[tuple[str, ...]],
    cells: Cells,
    inputs: Mapping[str, Scheme],
    kept_to: Constraints,
) -> tuple[_Table, ...]:
    """Make a table for each family that has a scheme for every unit; ``ValueError`` if none has."""
    shapes = {layer.name: layer.shape for layer in layers}
    units, found = scheme_groups(shapes, kept_to.fused), []
    for family in families:
        sizes, costs, seconds = np.full((3, len(units), len(family)), np.inf)
        for u, unit in enumerate(units):
            checkpoint()
            for s, name in enumerate(family):
                if not all(name in cells[x] for x in unit):
                    continue
                if kept_to.times is not None:
                    scheme = Scheme.parse(name)
                    own = inputs.get(unit[0]) if scheme.plain_dtype is None else None
                    parts = kept_to.times.together(scheme, [shapes[x] for x in unit], own)
                    taken = [part.seconds for part in parts if part.seconds is not None]
                    if len(taken) < len(parts):
                        continue
                    seconds[u, s] = sum(taken)
                sizes[u, s], costs[u, s] = (sum(cells[x][name][i] for x in unit) for i in (0, 1))
        if np.isfinite(sizes).any(1).all():
            timed = HullPath.of(seconds, costs) if kept_to.times else None
            found.append(_Table(units, family, HullPath.of(sizes, costs), timed))
    if not found:
        raise ValueError("layers that are multiplied as one matrix have no time by any of these schemes")
    return tuple(found)


def _best_points(paths: Sequence[HullPath]) -> tuple[np.ndarray, np.ndarray]:
    """Sizes and losses of the points that lose less than every smaller one."""
    size = np.concatenate([path.size_at for path in paths])
    cost = np.concatenate([path.cost_at for path in paths])
    order = np.lexsort((cost, size))
    size, cost = size[order], cost[order]
    best = np.r_[True, cost[1:] < np.minimum.accumulate(cost)[:-1]]
    return size[best], cost[best]


def _uniform(
    tables: Sequence[_Table], names: Sequence[str], weights: int, rest: float
) -> tuple[Uniform, ...]:
    """Return the schemes of a table that every unit can have, in the order of ``names``; ``rest``: seconds of
    other layers."""
    found = {}
    for table in tables:
        for i, name in enumerate(table.names):
            size, cost = (float(x[:, i].sum()) for x in (table.by_bits.sizes, table.by_bits.costs))
            took = None if table.by_time is None else rest + float(table.by_time.sizes[:, i].sum())
            if math.isfinite(size):
                found[name] = Uniform(name, size / weights, cost, took)
    return tuple(found[name] for name in names if name in found)


def _by_time(
    survey: Survey,
    tables: Sequence[_Table],
    shapes: Mapping[str, tuple[int, int]],
    inputs: Mapping[str, Scheme],
    kept_to: Constraints,
) -> TimeFrontier:
    assert kept_to.times is not None
    kept = {x.name: x.shape for x in survey.linear if x.role is Role.LINEAR and x.name not in shapes}
    rest = sum(time.seconds or 0.0 for time in kept_to.times.unquantized(kept, kept_to.fused))
    seconds, loss = _best_points([table.timed for table in tables])
    return TimeFrontier(kept_to.times, seconds + rest, loss, rest, kept, shapes, inputs, kept_to.fused)


def _kept_bytes(survey: Survey, chosen: Mapping[str, object], kept_to: Constraints) -> int:
    """Bytes of all tensors that no scheme is chosen for: as stored, or restored to 16 bits by a target."""
    kept = [layer for layer in survey.layers if layer.name not in chosen]
    size = survey.head.kept_bytes + sum(layer.stored_bytes for layer in kept if layer.bits)
    return size + (sum(layer.growth for layer in kept) if kept_to.target else 0)


def _refused(
    layers: Sequence[Layer], names: Sequence[str], refusals: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """Return the schemes that some layer cannot have, with the first such layer's reason."""
    found = {}
    for name in names:
        reasons = [refusals[layer.name][name] for layer in layers if name in refusals[layer.name]]
        if reasons:
            some = f"of {len(reasons)} of {len(layers)} layers: " if len(reasons) < len(layers) else ""
            found[name] = f"{some}{reasons[0]}"
    return found


def recipe_of(
    survey: Survey,
    choice: Choice,
    signal: str = "",
    method: str = "",
    constraints: Constraints | None = None,
) -> ModelRecipe:
    """Make the recipe of ``choice``, which was made under ``constraints``. It has a predicted loss only if
    the signal predicts one.

    With ``method`` every layer uses it, whatever the choice says, except the table of embeddings, which has
    no inputs to choose codes by.
    """
    signal, head, kept_to = signal or survey.head.default, survey.head, constraints or Constraints()
    layers = {}
    for name in choice.schemes:
        checkpoint()
        by = choice.methods.get(name, "") if not method else "" if survey.layer(name).is_table else method
        layers[name] = Recipe.parse(f"{choice.schemes[name]}+{by}" if by else choice.schemes[name])
    quantized = kept_to.inputs_of(list(layers))
    coded = [name for name, one in layers.items() if one.scheme.plain_dtype is None]
    return ModelRecipe(
        head.model,
        head.revision,
        head.weights_sha256,
        layers,
        signal=signal,
        bits=choice.bits,
        predicted_loss=choice.loss if SENSITIVITIES[signal].is_loss else None,
        versions=head.versions,
        schemes=_chosen_from(survey, choice, kept_to),
        target=kept_to.target.name if kept_to.target else "",
        fused=kept_to.fused,
        predicted_interval=predicted_interval(survey, signal, choice.schemes, choice.methods),
        inputs=kept_to.inputs,
        own_inputs={name: None for name in coded if kept_to.inputs and name not in quantized},
        texts_sha256=head.texts_sha256,
        predicted_time=choice.time,
    )


def _chosen_from(survey: Survey, choice: Choice, kept_to: Constraints) -> tuple[str, ...]:
    """Return the schemes that a choice was made from; with times, those with a time for some layer."""
    names, times = kept_to.schemes or survey.head.schemes, kept_to.times
    if times is None:
        return names
    cases = [(survey.layer(name).shape, x) for name in choice.schemes for x in {None, kept_to.inputs}]
    schemes = {name: Scheme.parse(name) for name in names}
    return tuple(n for n in names if any(not times.refusal(schemes[n], shape, x) for shape, x in cases))


def _rounded_up(number: float) -> float:
    """Round ``number`` up to four digits, so that a budget that a message names can be met."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 3) if 0 < number < math.inf else 1.0
    return math.ceil(number / unit) * unit if math.isfinite(number) else number
