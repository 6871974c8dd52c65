"""What a budget buys: a scheme for each layer, of all choices of a size the one with the least predicted
loss.

Losses of layers add up, so that this is a multiple-choice knapsack over (layer, scheme). A Lagrange
multiplier solves it for every budget at once: of each layer the schemes on the lower convex hull of (bits,
cost) remain; the steps along all hulls, the one that saves most per bit first, are the whole frontier.
Between two of its points what is left of a budget goes where it saves most. The multiplier also bounds what
any choice can reach (Everett 1963), so that every ``Choice`` says by how much it could be beaten at most.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

from explorer.methods.recipe import Recipe
from explorer.models.kinds import scheme_groups
from explorer.models.skeleton import is_expert
from explorer.schemes import Scheme
from explorer.schemes.scheme import todays_text
from explorer.survey.interval import predicted_interval
from explorer.survey.kinds import Role, matches
from explorer.survey.recipe import ModelRecipe
from explorer.survey.rows import Layer, Survey
from explorer.survey.sensitivities import SENSITIVITIES

Refusal = Callable[[Scheme, tuple[int, int]], str]
"""Why a target cannot carry a scheme for a weight of that shape, "" if it can: ``Export.refusal``."""
Family = Callable[[Scheme], str]
"""Which schemes a scheme can stand beside in one model, those of the same family: ``Export.family``."""
_SLACK = 1e-6
_TOLD = 2
"""Refusals that a message holds."""


@dataclass(frozen=True)
class Constraints:
    """What a recipe must keep to.

    schemes  only these (texts of the survey's; empty: all)
    refusal, expert_refusal, family  see ``Refusal``, ``Family``; the second is asked of experts' schemes
    bits     (scheme, [N, K]) -> bits per weight of a layer in the target's files; None: those of the survey
    keep     layers whose names match one of these patterns (``fnmatch``, or a part of the name) stay as they
             are
    fuse     one scheme for query, key and value, and one for gate and up; experts have one in any case
    target   the checkpoint format that the refusals and ``family`` are of (``apply.constraints_of``)
    usual    schemes that the target's users take, for advice
    head     choose for the head too
    inputs   how the layers' inputs are quantized; the refusals are of schemes that are multiplied with such
    only     if given, the layers to choose for, whatever ``keep`` and ``head`` say
    """

    schemes: tuple[str, ...] = ()
    refusal: Refusal | None = None
    expert_refusal: Callable[[Scheme], str] | None = None
    family: Family | None = None
    bits: Callable[[Scheme, tuple[int, int]], float] | None = None
    keep: tuple[str, ...] = ()
    fuse: bool = False
    target: str = ""
    usual: tuple[str, ...] = ()
    head: bool = False
    only: tuple[str, ...] = ()
    inputs: Scheme | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schemes", tuple(dict.fromkeys(todays_text(text) for text in self.schemes)))

    def keeps(self, layer: Layer) -> bool:
        """Whether ``layer`` stays as it is."""
        if self.only:
            return layer.name not in self.only
        if layer.role is not Role.LINEAR and not (self.head and layer.role is Role.HEAD):
            return True
        return any(matches(layer.name, pattern) for pattern in self.keep)


@dataclass(frozen=True)
class Choice:
    """A scheme for each layer. ``bits``: mean bits per weight over these layers; ``bytes`` that they take;
    ``loss``: the sum of their costs. No choice within the same budget costs less than ``loss - gap``."""

    schemes: Mapping[str, str]
    bits: float
    bytes: int
    loss: float
    gap: float


@dataclass(frozen=True)
class Uniform:
    """One scheme for all layers."""

    scheme: str
    bits: float
    loss: float


@dataclass(frozen=True, eq=False)
class Frontier:
    """All budgets at once. ``bits`` and ``loss`` [points]: the frontier, from the smallest size on;
    ``uniform``: single schemes that all layers can have; ``refused``: schemes that a layer cannot have ->
    why; ``left``: layers that no scheme serves, and that stay as they are -> why; ``kept_bytes``: of all
    tensors that no scheme is chosen for, as they are stored. ``at`` answers in about a millisecond. Of
    schemes that may not stand side by side each family has a table. ``inputs``: of the constraints; losses
    are of weights alone.
    """

    signal: str
    bits: np.ndarray
    loss: np.ndarray
    uniform: tuple[Uniform, ...]
    refused: Mapping[str, str]
    left: Mapping[str, str]
    kept_bytes: int
    _tables: tuple[_Table, ...]
    inputs: Scheme | None = None

    @property
    def least(self) -> float:
        """The fewest bits per weight that a budget can have."""
        return float(self.bits[0])

    @property
    def most(self) -> float:
        """Bits per weight beyond which nothing more is gained."""
        return float(self.bits[-1])

    @property
    def weights(self) -> int:
        """How many weights the layers have that schemes are chosen for."""
        return self._tables[0].weights

    def at(self, bits: float) -> Choice:
        """The best choice of at most ``bits`` a weight; ``ValueError`` below ``least``."""
        budget = (bits + _SLACK) * self.weights
        within = [table for table in self._tables if budget >= table.size_at[0]]
        if not within:
            raise ValueError(f"{bits:g} bits per weight are fewer than these schemes take: {self.least:.4g}")
        best = min((table.choose(budget) for table in within), key=lambda choice: choice.loss)
        bound = min(table.bound(budget) for table in within)
        return dataclasses.replace(best, gap=max(best.loss - bound, 0.0))

    def at_bytes(self, size: float) -> Choice:
        """The best choice with which the whole model, what is kept as it is included, takes at most
        ``size``."""
        least = self.kept_bytes + self.least * self.weights / 8
        if not size >= least:
            raise ValueError(
                f"{size:,.0f} bytes are fewer than these schemes make of the model: {least:,.0f}"
            )
        return self.at(max((size - self.kept_bytes) * 8 / self.weights, self.least))

    def at_loss(self, loss: float) -> Choice:
        """The first choice of the frontier whose predicted loss is at most ``loss``."""
        fit = np.flatnonzero(self.loss <= loss)
        if not len(fit):
            raise ValueError(
                f"no choice of these schemes has a predicted loss of {loss:g}; least: {self.loss[-1]:.3g}"
            )
        return self.at(float(self.bits[fit[0]]))

    def of(self, schemes: Mapping[str, str]) -> Choice:
        """A choice of one's own, for the same layers; its gap is to the best one of its size and family."""
        names = set(schemes.values())
        table = next((t for t in self._tables if names <= set(t.names)), self._tables[0])
        return table.of(schemes)


def frontier(survey: Survey, signal: str = "", constraints: Constraints | None = None) -> Frontier:
    """The frontier of bits against the cost by ``signal`` (the survey's default if empty). Layers that the
    constraints leave no scheme stay as they are (``Frontier.left``).

    ``ValueError`` for a survey that is not complete, a signal or scheme that it has not, a pattern that no
    layer matches, and where the constraints leave no layer.
    """
    constraints, signal = constraints or Constraints(), signal or survey.head.default
    _check_asked(survey, signal, constraints)
    layers = [layer for layer in survey.linear if not constraints.keeps(layer)]
    if not layers:
        raise ValueError(f"no layer of {survey.head.model} is left to choose a scheme for")
    names = constraints.schemes or survey.head.schemes
    families = _families(names, constraints.family)
    refusals = _refusals(layers, names, constraints)
    left = _left(layers, families, refusals, constraints.fuse)
    layers = [layer for layer in layers if layer.name not in left]
    if not layers:
        first = next(iter(left))
        raise ValueError(
            f"no layer of {survey.head.model} can have one of these schemes: {first} "
            f"{list(survey.layer(first).shape)} is left without a scheme: {left[first]}{_advice(constraints)}"
        )
    chosen_for = {layer.name for layer in layers}
    rest = (layer for layer in survey.layers if layer.bits and layer.name not in chosen_for)
    kept = sum(layer.stored_bytes for layer in rest)
    if constraints.target:
        kept += sum(layer.growth for layer in survey.layers if layer.name not in chosen_for)
    groups = scheme_groups([layer.name for layer in layers], constraints.fuse)
    layers = _in_bits_of(constraints, layers)
    allowed = {layer.name: set(names) - set(refusals[layer.name]) for layer in layers}
    tables = _tables_of(layers, groups, families, allowed, signal)
    bits, loss = _best_points(tables)
    refused = _refused(layers, names, refusals)
    kept += survey.head.kept_bytes
    return Frontier(
        signal, bits, loss, _uniform(tables, names), refused, left, kept, tables, constraints.inputs
    )


def _in_bits_of(constraints: Constraints, layers: Sequence[Layer]) -> list[Layer]:
    """The layers with the bits that the target's files take."""
    stored = constraints.bits
    if stored is None:
        return list(layers)
    refusal = constraints.refusal or (lambda scheme, shape: "")
    found = []
    for layer in layers:
        schemes = {text: Scheme.parse(text) for text in layer.bits}
        taken = {t: stored(s, layer.shape) for t, s in schemes.items() if not refusal(s, layer.shape)}
        found.append(dataclasses.replace(layer, bits={**layer.bits, **taken}))
    return found


def _advice(constraints: Constraints) -> str:
    """Which schemes to survey for the target of ``constraints``; empty without one."""
    if not constraints.usual:
        return ""
    return f". Survey the model by schemes that {constraints.target} carries: {', '.join(constraints.usual)}"


def _check_asked(survey: Survey, signal: str, constraints: Constraints) -> None:
    """``ValueError`` for a survey that was stopped, and for names that nothing in it has."""
    if not survey.complete:
        raise ValueError(
            f"the survey of {survey.head.model} was stopped after {len(survey.layers)} of "
            f"{survey.head.layers} layers: let it go on first"
        )
    if signal not in survey.head.signals:
        raise ValueError(f"the survey has no signal {signal!r}; it has {', '.join(survey.head.signals)}")
    for name in constraints.schemes:
        if name not in survey.head.schemes:
            raise ValueError(f"the survey has no scheme {name!r}; it has {', '.join(survey.head.schemes)}")
    for pattern in constraints.keep if survey.linear else ():
        if not any(matches(layer.name, pattern) for layer in survey.layers):
            raise ValueError(
                f"no layer's name matches {pattern!r}: a part of a name such as {survey.linear[0].name}, or "
                "a pattern with * and ?"
            )


def _families(names: Sequence[str], family: Family | None) -> list[tuple[str, ...]]:
    """The schemes in groups that may stand side by side."""
    found: dict[str, list[str]] = {}
    for name in names:
        found.setdefault(family(Scheme.parse(name)) if family else "", []).append(name)
    return [tuple(group) for group in found.values()]


def _tables_of(
    layers: Sequence[Layer],
    groups: Sequence[tuple[str, ...]],
    families: Sequence[tuple[str, ...]],
    allowed: Mapping[str, set[str]],
    signal: str,
) -> tuple[_Table, ...]:
    """A table for each family that has a scheme for every unit; ``ValueError`` if none has."""
    tables, errors = [], []
    for family in families:
        try:
            tables.append(_Table.of_layers(layers, groups, family, allowed, signal))
        except ValueError as error:
            errors.append(error)
    if not tables:
        raise errors[0]
    return tuple(tables)


def _uniform(tables: Sequence[_Table], names: Sequence[str]) -> tuple[Uniform, ...]:
    """The schemes that every unit of a table can have, in the order of ``names``."""
    uniform = {
        name: Uniform(name, float(table.sizes[:, i].sum() / table.weights), float(table.costs[:, i].sum()))
        for table in tables
        for i, name in enumerate(table.names)
        if np.isfinite(table.sizes[:, i]).all()
    }
    return tuple(uniform[name] for name in names if name in uniform)


def _best_points(tables: Sequence[_Table]) -> tuple[np.ndarray, np.ndarray]:
    """Bits and losses of all points that no smaller one is as good as."""
    size = np.concatenate([table.size_at for table in tables])
    cost = np.concatenate([table.cost_at for table in tables])
    order = np.lexsort((cost, size))
    size, cost = size[order], cost[order]
    best = np.r_[True, cost[1:] < np.minimum.accumulate(cost)[:-1]]
    return size[best] / tables[0].weights, cost[best]


def recipe_of(
    survey: Survey,
    choice: Choice,
    signal: str = "",
    method: str = "",
    constraints: Constraints | None = None,
) -> ModelRecipe:
    """``choice``, made under ``constraints``, as a recipe, every layer by ``method``; a predicted loss only
    where the signal predicts one."""
    signal = signal or survey.head.default
    head, kept_to = survey.head, constraints or Constraints()
    return ModelRecipe(
        head.model,
        head.revision,
        head.weights_sha256,
        {name: Recipe.parse(f"{s}+{method}" if method else s) for name, s in choice.schemes.items()},
        signal,
        choice.bits,
        choice.loss if SENSITIVITIES[signal].is_loss else None,
        head.versions,
        kept_to.schemes or head.schemes,
        kept_to.target,
        kept_to.fuse,
        predicted_interval(survey, signal, choice.schemes),
        kept_to.inputs,
        head.texts_sha256,
    )


def _refusals(
    layers: Sequence[Layer], names: Sequence[str], constraints: Constraints
) -> dict[str, dict[str, str]]:
    """Layer -> the schemes that it cannot have -> why."""
    schemes = {name: Scheme.parse(name) for name in names}
    of_all, of_experts = constraints.refusal, constraints.expert_refusal
    found: dict[str, dict[str, str]] = {layer.name: {} for layer in layers}
    for layer in layers:
        for name, scheme in schemes.items():
            why = of_all(scheme, layer.shape) if of_all else ""
            if not why and of_experts and is_expert(layer.name):
                why = of_experts(scheme)
            if why:
                found[layer.name][name] = why
    return found


def _left(
    layers: Sequence[Layer],
    families: Sequence[tuple[str, ...]],
    refusals: Mapping[str, Mapping[str, str]],
    fuse: bool,
) -> dict[str, str]:
    """The layers that no scheme serves -> why; of families that may not stand side by side, those that are
    left by the one that leaves the fewest weights. Layers of one group are left together."""
    weights = {layer.name: layer.weights for layer in layers}
    groups = scheme_groups(weights, fuse)
    each = [_left_by(family, groups, refusals) for family in families]
    return min(each, key=lambda left: sum(weights[name] for name in left))


def _left_by(
    family: Sequence[str], groups: Sequence[tuple[str, ...]], refusals: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    found = {}
    for group in groups:
        if any(not any(name in refusals[layer] for layer in group) for name in family):
            continue
        for layer in group:
            own = {name: refusals[layer][name] for name in family if name in refusals[layer]}
            others = [x for x in group if x != layer]
            found[layer] = (
                _some(own)
                if len(own) == len(family)
                else "no scheme serves it and the layers that share one with it, such as "
                f"{max(others, key=lambda x: len(refusals[x]))}"
            )
    return found


def kept_words(left: Mapping[str, str]) -> list[str]:
    """Sentences about layers that stay as they are, one a reason: how many, which parts of blocks, why."""
    found = []
    for why in dict.fromkeys(left.values()):
        names = [name for name, one in left.items() if one == why]
        parts = ", ".join(dict.fromkeys(name.rpartition(".")[2] for name in names))
        which = names[0] if len(names) == 1 else f"{len(names)} layers ({parts}), such as {names[0]}"
        found.append(f"kept as stored: {which}: {why}")
    return found


def _some(refused: Mapping[str, str]) -> str:
    """The first refusals in words, and how many more there are."""
    first = [f"{name}: {why}" for name, why in refused.items()][:_TOLD]
    more = f"; and {len(refused) - _TOLD} more" if len(refused) > _TOLD else ""
    return f"{'; '.join(first)}{more}"


def _refused(
    layers: Sequence[Layer], names: Sequence[str], refusals: Mapping[str, Mapping[str, str]]
) -> dict[str, str]:
    """The schemes that not every layer can have, and why: the first layer's words."""
    found = {}
    for name in names:
        reasons = [refusals[layer.name][name] for layer in layers if name in refusals[layer.name]]
        if reasons:
            some = f"of {len(reasons)} of {len(layers)} layers: " if len(reasons) < len(layers) else ""
            found[name] = f"{some}{reasons[0]}"
    return found


@dataclass(frozen=True, eq=False)
class _Table:
    """Units (layers, or fused groups) × schemes: ``sizes`` in bits and ``costs``, infinite where a unit
    cannot have a scheme; and the frontier: at point k ``path[:k]`` of the steps are taken, each (unit, new
    scheme)."""

    groups: Sequence[tuple[str, ...]]
    names: Sequence[str]
    weights: int
    sizes: np.ndarray
    costs: np.ndarray
    start: np.ndarray
    path: np.ndarray
    size_at: np.ndarray
    cost_at: np.ndarray

    @classmethod
    def of_layers(
        cls,
        layers: Sequence[Layer],
        groups: Sequence[tuple[str, ...]],
        names: Sequence[str],
        allowed: Mapping[str, set[str]],
        signal: str,
    ) -> _Table:
        """The table of ``groups`` of ``layers``; ``ValueError`` where a group has no scheme in common."""
        by_name = {layer.name: layer for layer in layers}
        sizes, costs = np.full((2, len(groups), len(names)), np.inf)
        for u, group in enumerate(groups):
            for s, name in enumerate(names):
                if all(name in allowed[x] for x in group):
                    sizes[u, s] = sum(by_name[x].bits[name] * by_name[x].weights for x in group)
                    costs[u, s] = sum(by_name[x].costs[signal][name] for x in group)
            if not np.isfinite(sizes[u]).any():
                who = f"{', '.join(group)} are fused, and" if len(group) > 1 else f"{group[0]}:"
                raise ValueError(f"{who} no scheme of {', '.join(names)} serves all of them")
        hulls = [_hull(sizes[u], costs[u]) for u in range(len(groups))]
        steps = sorted(
            (-(costs[u, b] - costs[u, a]) / (sizes[u, b] - sizes[u, a]), -u, -i, u, b)
            for u, hull in enumerate(hulls)
            for i, (a, b) in enumerate(itertools.pairwise(hull))
        )[::-1]
        start = np.array([hull[0] for hull in hulls])
        every = np.arange(len(groups))
        now, size, cost = start.copy(), [sizes[every, start].sum()], [costs[every, start].sum()]
        for *_, u, b in steps:
            size.append(size[-1] + sizes[u, b] - sizes[u, now[u]])
            cost.append(cost[-1] + costs[u, b] - costs[u, now[u]])
            now[u] = b
        path = np.array([(u, b) for *_, u, b in steps], dtype=int).reshape(-1, 2)
        weights = sum(layer.weights for layer in layers)
        return cls(groups, names, weights, sizes, costs, start, path, np.array(size), np.array(cost))

    def choose(self, budget: float) -> Choice:
        """The last point of the frontier within ``budget`` bits, and then single changes that save most."""
        chosen, k = self._point(budget)
        every = np.arange(len(chosen))
        left = budget - self.size_at[k]
        while True:
            more = self.sizes - self.sizes[every, chosen][:, None]
            saved = np.where(more <= left, self.costs[every, chosen][:, None] - self.costs, -np.inf)
            unit, scheme = np.unravel_index(int(saved.argmax()), saved.shape)
            if not saved[unit, scheme] > 0:
                return self._choice(chosen, budget)
            left -= more[unit, scheme]
            chosen[unit] = scheme

    def of(self, schemes: Mapping[str, str]) -> Choice:
        """See ``Frontier.of``."""
        chosen = []
        for group in self.groups:
            own = {schemes.get(name, "") for name in group}
            if len(own) > 1 or not own <= set(self.names):
                raise ValueError(f"{', '.join(group)}: choose one of {', '.join(self.names)}, not {own}")
            chosen.append(list(self.names).index(own.pop()))
        indices = np.array(chosen)
        return self._choice(indices, float(self.sizes[np.arange(len(chosen)), indices].sum()))

    def _point(self, budget: float) -> tuple[np.ndarray, int]:
        """The schemes at the last point within ``budget``, and which point that is."""
        k = max(int(np.searchsorted(self.size_at, budget, side="right")) - 1, 0)
        chosen = self.start.copy()
        for u, b in self.path[:k]:
            chosen[u] = b
        return chosen, k

    def _choice(self, chosen: np.ndarray, budget: float) -> Choice:
        every = np.arange(len(chosen))
        size, cost = float(self.sizes[every, chosen].sum()), float(self.costs[every, chosen].sum())
        schemes = {x: self.names[i] for group, i in zip(self.groups, chosen, strict=True) for x in group}
        gap = max(cost - self.bound(budget), 0.0)
        return Choice(schemes, size / self.weights, round(size / 8), cost, gap)

    def bound(self, budget: float) -> float:
        """What any choice within ``budget`` bits costs at least."""
        return float(np.interp(budget, self.size_at, self.cost_at))


def _hull(sizes: np.ndarray, costs: np.ndarray) -> list[int]:
    """Indices on the lower convex hull of (size, cost), from the smallest on, each cheaper than the last."""
    order = sorted(
        (i for i in range(len(sizes)) if np.isfinite(sizes[i])), key=lambda i: (sizes[i], costs[i])
    )
    hull: list[int] = []
    for i in order:
        if hull and costs[i] >= costs[hull[-1]]:
            continue
        while len(hull) > 1:
            a, b = hull[-2:]
            if (costs[b] - costs[a]) * (sizes[i] - sizes[a]) < (costs[i] - costs[a]) * (sizes[b] - sizes[a]):
                break
            hull.pop()
        if hull and sizes[i] == sizes[hull[-1]]:
            hull.pop()
        hull.append(i)
    return hull
