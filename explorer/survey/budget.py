"""What a budget buys: a scheme for each layer, and a method if the survey has any, of all choices of a size
the one with the least predicted loss.

Losses of layers add up, so that this is a multiple-choice knapsack over (layer, scheme): of bits, of the
seconds of each layer's product, or of both (``knapsack.least_within``). A Lagrange multiplier draws the whole
frontier; between two of its points partial choices are enumerated. Every ``Choice`` says by how much it could
be beaten at most: by nothing, where all of them were followed.

Methods change neither: their codes take the bits and the time of those of rounding. So the cost of a scheme
is that by the layer's best method, whatever else is chosen.
"""

from __future__ import annotations

import dataclasses
import math
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from explorer import words
from explorer.methods.recipe import Recipe
from explorer.models.files import Role, matches
from explorer.models.kinds import fused_groups, has_one_scale, scheme_groups
from explorer.models.skeleton import is_expert
from explorer.schemes import Scheme
from explorer.schemes.scheme import todays_text
from explorer.survey.interval import predicted_interval
from explorer.survey.knapsack import HullPath, least_within
from explorer.survey.recipe import ModelRecipe
from explorer.survey.rows import Layer, Survey
from explorer.survey.sensitivities import SENSITIVITIES
from explorer.survey.times import PredictedTime, StepTimes

_BITS = re.compile(r"\s*(\d+(?:\.\d+)?)\s*(?:bits?(?: per weight)?|bpw)?\s*", re.IGNORECASE)
Refusal = Callable[[Scheme, tuple[int, int]], str]
"""Why a target cannot carry a scheme for a weight of that shape, "" if it can: ``Export.refusal``."""
ProductRefusal = Callable[[Scheme, Scheme], str]
"""Why inputs by the first are not multiplied with weights by the second, "" if they are."""
InputChoices = tuple[Scheme | None, ...]
"""How a layer's inputs may be quantized; None: they stay as they are."""
AS_THEY_ARE: InputChoices = (None,)
Option = tuple[str, str]
"""A scheme of weights and one of inputs, "" for inputs as they are."""
Around = Callable[[Sequence[str]], int | None]
"""Bytes that a target's files take beside the codes of these layers (``Export.around``); None: not known."""
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
    table_refusal  why the table of embeddings cannot have any scheme, empty if it can
    bits     (scheme, [N, K]) -> bits per weight of a layer in the target's files; None: those of the survey
    keep     layers whose names match one of these patterns (``fnmatch``, or a part of the name) stay as they
             are
    fuse     one scheme for query, key and value, and one for gate and up; experts have one in any case
    target   the checkpoint format that the refusals and ``family`` are of (``apply.constraints_of``)
    usual    schemes that the target's users take, for advice
    head     choose for the head too
    embeddings  choose for the table of tokens' embeddings too
    inputs   how the inputs of a layer of codes may be quantized, of which each layer has one; and in
             ``own_inputs`` those of single layers
    product_refusal  see ``ProductRefusal``; None: every pair can be had
    only     if given, the layers to choose for, whatever ``keep`` and ``head`` say
    around   see ``Around``; where it is not known, what is kept counts as it is stored, and files have more
    times    what products take: only schemes that have a time, and the frontier knows budgets of time
    methods  only these of the survey's beside rounding to nearest; None: all
    """

    schemes: tuple[str, ...] = ()
    refusal: Refusal | None = None
    expert_refusal: Callable[[Scheme], str] | None = None
    family: Family | None = None
    table_refusal: str = ""
    bits: Callable[[Scheme, tuple[int, int]], float] | None = None
    keep: tuple[str, ...] = ()
    fuse: bool = False
    target: str = ""
    usual: tuple[str, ...] = ()
    head: bool = False
    embeddings: bool = False
    only: tuple[str, ...] = ()
    inputs: InputChoices = AS_THEY_ARE
    times: StepTimes | None = None
    around: Around | None = None
    methods: tuple[str, ...] | None = None
    own_inputs: Mapping[str, InputChoices] = field(default_factory=dict)
    product_refusal: ProductRefusal | None = None

    def __post_init__(self) -> None:
        object.__setattr__(self, "schemes", tuple(dict.fromkeys(todays_text(text) for text in self.schemes)))

    def inputs_of(self, layer: str, scheme: Scheme) -> InputChoices:
        """How the inputs of ``layer`` may be quantized under ``scheme``; those of a cast stay as they are."""
        if scheme.plain_dtype is not None:
            return AS_THEY_ARE
        return self.own_inputs.get(layer, self.inputs)

    @property
    def all_inputs(self) -> tuple[Scheme, ...]:
        """Every way in which some layer's inputs may be quantized."""
        every = (one for choices in (self.inputs, *self.own_inputs.values()) for one in choices)
        return tuple(dict.fromkeys(one for one in every if one is not None))

    def keeps(self, layer: Layer) -> bool:
        """Whether ``layer`` stays as it is."""
        if self.only:
            return layer.name not in self.only
        asked = {Role.LINEAR: True, Role.HEAD: self.head, Role.EMBEDDING: self.embeddings}
        if not asked.get(layer.role, False):
            return True
        return any(matches(layer.name, pattern) for pattern in self.keep)


@dataclass(frozen=True)
class Choice:
    """A scheme for each layer, in ``methods`` the method of each that is not rounded to nearest, and in
    ``inputs`` how the inputs of those are quantized whose are.
    ``bits``: mean bits per weight over these layers; ``bytes`` that they take;
    ``loss``: the sum of their costs. No choice within the same budget costs less than ``loss - gap``.
    ``time``: of all linear layers in one step, where the frontier was asked for with times."""

    schemes: Mapping[str, str]
    bits: float
    bytes: int
    loss: float
    gap: float
    time: PredictedTime | None = None
    methods: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)

    def recipe(self, layer: str) -> Recipe:
        """The scheme and the method of ``layer``."""
        return Recipe(Scheme.parse(self.schemes[layer]), self.methods.get(layer, ""))


@dataclass(frozen=True)
class Uniform:
    """One scheme for all layers, each by its best method. ``seconds``: as those of ``Frontier``.
    ``inputs``: how all layers' are quantized, where that was chosen; empty for as they are, and where each
    layer's own are."""

    scheme: str
    bits: float
    loss: float
    seconds: float | None = None
    inputs: str = ""


@dataclass(frozen=True, eq=False)
class TimeFrontier:
    """All budgets of time at once: ``seconds`` of the linear layers in a step and ``loss`` [points], from the
    shortest on; ``rest``: seconds of those layers that no scheme is chosen for, called ``kept``."""

    times: StepTimes
    seconds: np.ndarray
    loss: np.ndarray
    rest: float
    kept: Mapping[str, tuple[int, int]]

    @property
    def least(self) -> float:
        """The fewest seconds that a budget can have."""
        return float(self.seconds[0])

    @property
    def most(self) -> float:
        """Seconds beyond which nothing more is gained."""
        return float(self.seconds[-1])


@dataclass(frozen=True, eq=False)
class Frontier:
    """All budgets at once. ``bits`` and ``loss`` [points]: the frontier, from the smallest size on;
    ``uniform``: single schemes that all layers can have; ``refused``: schemes that a layer cannot have ->
    why; ``left``: layers that no scheme serves, and that stay as they are -> why; ``kept_bytes``: of all
    tensors that no scheme is chosen for, as they are stored, or ``in_files`` all that the target's files take
    beside the codes. Of schemes that may not stand side by side each
    family has a table. ``inputs``: every way in which layers' inputs may be quantized; ``weights_alone``:
    there is one, and losses are without it. ``by_time``: the same for budgets of time, where the constraints
    have times. ``methods``: layer -> scheme -> the method with the least predicted loss, where that is not
    rounding.
    """

    signal: str
    bits: np.ndarray
    loss: np.ndarray
    uniform: tuple[Uniform, ...]
    refused: Mapping[str, str]
    left: Mapping[str, str]
    kept_bytes: int
    _tables: tuple[_Table, ...]
    inputs: tuple[Scheme, ...] = ()
    by_time: TimeFrontier | None = None
    _shapes: Mapping[str, tuple[int, int]] = field(default_factory=dict)
    _fused: bool = False
    in_files: bool = False
    methods: Mapping[str, Mapping[str, str]] = field(default_factory=dict)
    weights_alone: bool = False

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
        found = self._best((bits + _SLACK) * self.weights)
        if found is None:
            raise ValueError(too_few_bits(bits, self.least))
        return found

    def at_time(self, seconds: float, bits: float | None = None) -> Choice:
        """The best choice whose linear layers take at most ``seconds`` in a step, and at most ``bits`` a
        weight where that is given. ``ValueError`` with the least time there is for a budget below it."""
        front = self.by_time
        if front is None:
            raise ValueError("a budget of time needs times of products: constraints with times")
        if bits is not None and bits < self.least - _SLACK:
            return self.at(bits)
        size = None if bits is None else (bits + _SLACK) * self.weights
        found = self._best(size, seconds - front.rest)
        if found is None:
            least = front.rest + min(table.least_seconds(size) for table in self._tables)
            beside = "" if bits is None else f" at {bits:g} bits per weight"
            stays = f", {words.duration(front.rest)} of it of layers left as they are" if front.rest else ""
            raise ValueError(
                f"{words.duration(seconds)} are less than the linear layers take by these schemes{beside}: "
                f"{words.duration(_rounded_up(least), 4)} at least{stays} (batch {front.times.batch:,} on "
                f"{front.times.machine})"
            )
        return found

    def _best(self, size: float | None, seconds: float | None = None) -> Choice | None:
        """The choice of the least loss within budgets of all units, of one or more families each with its
        bound; None if there is none."""
        solved = (table.within(size, seconds) for table in self._tables)
        found = [one for one in solved if one is not None]
        if not found:
            return None
        best = min((choice for choice, _ in found), key=lambda choice: choice.loss)
        return self._completed(best, max(best.loss - min(bound for _, bound in found), 0.0))

    def _completed(self, choice: Choice, gap: float) -> Choice:
        """``choice`` with its gap, its time and its methods."""
        methods = {x: self.methods.get(x, {}).get(scheme, "") for x, scheme in choice.schemes.items()}
        by_method = {name: method for name, method in methods.items() if method}
        time = self._time_of(choice)
        return dataclasses.replace(choice, gap=gap, time=time, methods=by_method)

    def _time_of(self, choice: Choice) -> PredictedTime | None:
        """What the linear layers take by a choice; None without times."""
        if self.by_time is None:
            return None
        recipes = {name: Recipe(Scheme.parse(text)) for name, text in choice.schemes.items()}
        inputs = {name: Scheme.parse(text) for name, text in choice.inputs.items()}
        front = self.by_time
        return front.times.of_recipe(recipes, self._shapes, front.kept, self._fused, inputs)

    def at_bytes(self, size: float) -> Choice:
        """The best choice with which the whole model, what is kept as it is included, takes at most
        ``size``."""
        return self.at(self.bits_of(size))

    def bits_of(self, size: float) -> float:
        """The bits per weight with which the whole model takes at most ``size`` bytes; ``ValueError`` for
        fewer than these schemes make of it."""
        least = self.kept_bytes + self.least * self.weights / 8
        if not size >= least:
            raise ValueError(
                f"by these schemes the model takes at least {least:,.0f} bytes; the budget is {size:,.0f}"
            )
        # ``at`` allows a little more than it is asked for, which is bytes of a large model.
        return max((size - self.kept_bytes) * 8 / self.weights - _SLACK, self.least)

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
        choice, bound = table.of(schemes)
        return self._completed(choice, max(choice.loss - bound, 0.0))


def too_few_bits(bits: float, least: float) -> str:
    """The refusal of a budget of ``bits`` per weight, where schemes take ``least``."""
    return f"these schemes take at least {least:.4g} bits per weight; the budget is {bits:g}"


def budget_of(text: str, front: Frontier) -> float:
    """Bits per weight of a budget in words: "4.5", "4.5 bits", or a size of the whole model, "90 MB".
    ``ValueError`` for anything else, and for a size below that of the smallest choice of ``front``."""
    if (bits := _BITS.fullmatch(text)) is not None:
        return float(bits[1])
    if _BITS.fullmatch(pointed := text.replace(",", ".")):
        raise ValueError(f"{text[:40]!r} has a comma: write {pointed.strip()[:40]}, with a point")
    try:
        size = words.byte_size(text)
    except ValueError:
        raise ValueError(f"{text[:40]!r} is not a budget: write it like 4.5 bits or 90 MB") from None
    return front.bits_of(size)


def frontier(survey: Survey, signal: str = "", constraints: Constraints | None = None) -> Frontier:
    """The frontier of bits against the cost by ``signal`` (the survey's default if empty). Layers that the
    constraints leave no scheme stay as they are (``Frontier.left``).

    ``ValueError`` for a survey that is not complete, a signal or scheme that it has not, a pattern that no
    layer matches, and where the constraints leave no layer.
    """
    constraints, signal = constraints or Constraints(), signal or survey.head.default
    _check_asked(survey, signal, constraints)
    predicted = _inputs_predicted(survey, signal, constraints)
    layers = [layer for layer in survey.linear if not constraints.keeps(layer)]
    if not layers:
        raise ValueError(f"no layer of {survey.head.model} is left to choose a scheme for")
    names = constraints.schemes or survey.head.schemes
    if constraints.times is not None and any(is_expert(layer.name) for layer in survey.layers):
        raise ValueError(
            f"the time of a step is not known for {survey.head.model}: its experts are multiplied in groups, "
            "as many tokens each as are routed to it"
        )
    families = _families(names, constraints.family)
    refusals = _refusals(layers, names, constraints)
    left = _left(layers, families, refusals, constraints.fuse)
    if constraints.table_refusal:  # of whatever scheme
        left |= {layer.name: constraints.table_refusal for layer in layers if layer.is_table}
    layers = [layer for layer in layers if layer.name not in left]
    if not layers:
        first = next(iter(left))
        raise ValueError(
            f"no layer of {survey.head.model} can have one of these schemes: {first} "
            f"{list(survey.layer(first).shape)} is left without a scheme: {left[first]}{_advice(constraints)}"
        )
    if constraints.times is not None and (looked_up := [layer.name for layer in layers if layer.is_table]):
        raise ValueError(
            f"{looked_up[0]}: its rows are looked up, and no product's time is known for that: keep it"
        )
    chosen_for = {layer.name for layer in layers}
    rest = (layer for layer in survey.layers if layer.bits and layer.name not in chosen_for)
    kept = sum(layer.stored_bytes for layer in rest)
    if constraints.target:
        kept += sum(layer.growth for layer in survey.layers if layer.name not in chosen_for)
    groups = scheme_groups([layer.name for layer in layers], constraints.fuse)
    layers = _in_bits_of(constraints, layers)
    asked_for = survey.head.methods if constraints.methods is None else constraints.methods
    methods = best_methods(survey, layers, signal, asked_for, constraints.fuse)
    layers = [_by_methods(layer, signal, methods.get(layer.name, {})) for layer in layers]
    if not predicted:
        layers = [dataclasses.replace(layer, inputs={}) for layer in layers]
    allowed = _options(layers, names, refusals, constraints)
    tables = _tables_of(layers, groups, families, allowed, signal, constraints.times)
    bits, loss = _best_points([table.by_bits for table in tables])
    refused = _refused(layers, names, refusals)
    kept += survey.head.kept_bytes
    around = constraints.around([layer.name for layer in layers]) if constraints.around else None
    kept = kept if around is None else around
    by_time = None
    if constraints.times is not None:
        linear = (x for x in survey.linear if x.role is Role.LINEAR and x.name not in chosen_for)
        by_time = _by_time(constraints.times, tables, {x.name: x.shape for x in linear}, constraints.fuse)
    return Frontier(
        signal,
        bits / tables[0].weights,
        loss,
        _uniform(tables, names, by_time.rest if by_time else 0.0),
        refused,
        left,
        kept,
        tables,
        constraints.all_inputs,
        by_time,
        {layer.name: layer.shape for layer in layers},
        constraints.fuse,
        around is not None,
        methods,
        bool(constraints.all_inputs) and not predicted,
    )


def _inputs_predicted(survey: Survey, signal: str, constraints: Constraints) -> bool:
    """Whether losses by ``signal`` have what quantized inputs add. ``ValueError`` where a layer's inputs are
    to be chosen and that is not known."""
    several = any(len(x) > 1 for x in (constraints.inputs, *constraints.own_inputs.values()))
    wanted = constraints.all_inputs
    missing = next((one for one in wanted if str(one) not in survey.head.inputs), None)
    if missing is None and SENSITIVITIES[signal].is_loss:
        return bool(wanted)
    if not several:
        return False
    if missing is not None:
        raise ValueError(
            f"the survey does not predict what inputs by {missing} add to the loss: survey the model with "
            f"--inputs {','.join(map(str, wanted))}"
        )
    raise ValueError(f"inputs are chosen by what they add to the loss, and {signal} predicts none")


def _options(
    layers: Sequence[Layer],
    names: Sequence[str],
    refusals: Mapping[str, Mapping[str, str]],
    constraints: Constraints,
) -> dict[str, set[Option]]:
    """The pairs of schemes of weights and inputs that each layer can have."""
    schemes = {name: Scheme.parse(name) for name in names}
    found: dict[str, set[Option]] = {}
    for layer in layers:
        found[layer.name] = {
            (name, str(inputs or ""))
            for name, scheme in schemes.items()
            if name not in refusals[layer.name]
            for inputs in constraints.inputs_of(layer.name, scheme)
            if not _pair_refusal(constraints, layer, scheme, inputs)
        }
    return found


def _pair_refusal(constraints: Constraints, layer: Layer, scheme: Scheme, inputs: Scheme | None) -> str:
    """Why ``layer`` cannot have ``scheme`` with such inputs; empty if it can."""
    why = ""
    if inputs is not None and constraints.product_refusal is not None:
        why = constraints.product_refusal(inputs, scheme)
    if not why and constraints.times is not None:
        why = constraints.times.refusal(scheme, layer.shape, inputs)
    return why


def keeping_inputs(survey: Survey, constraints: Constraints, most: float) -> Constraints:
    """``constraints`` under which inputs are quantized of as many multiply-adds as add at most ``most`` to
    the predicted loss; those of other layers stay as they are, and so do those that no allowed scheme is
    multiplied with. Each layer has the way that adds least. The layers whose inputs add least for their
    weights come first; layers of one scheme go together.

    ``ValueError`` for a survey that does not predict what inputs add.
    """
    wanted = constraints.all_inputs
    layers = [x for x in survey.linear if not constraints.keeps(x) and not x.is_table]
    known = [x for x in layers if all(str(one) in x.inputs for one in wanted)]
    if not known or not wanted:
        raise ValueError(
            "the survey does not predict what quantized inputs add to the loss: survey the model with "
            f"--inputs {','.join(map(str, wanted)) or 'int8_row'}"
        )
    by_name = {layer.name: layer for layer in layers}
    own = dict.fromkeys((layer.name for layer in layers), AS_THEY_ARE)
    rated, left = [], most
    for group in scheme_groups([layer.name for layer in known], constraints.fuse):
        members = [by_name[name] for name in group]
        ways = [one for one in wanted if all(_is_multiplied(survey, constraints, x, one) for x in members)]
        for one in ways:
            added = sum(x.inputs[str(one)] for x in members)
            rated.append((added / sum(x.weights for x in members), added, group, one))
    for _, added, group, one in sorted(rated, key=lambda row: row[:2]):
        if added <= left and own[group[0]] == AS_THEY_ARE:
            left -= added
            own |= dict.fromkeys(group, (one,))
    return dataclasses.replace(constraints, own_inputs=own)


def _is_multiplied(survey: Survey, constraints: Constraints, layer: Layer, inputs: Scheme) -> bool:
    """Whether ``layer`` may have a scheme of codes that is multiplied with such inputs."""
    for text in constraints.schemes or survey.head.schemes:
        scheme = Scheme.parse(text)
        why = constraints.refusal(scheme, layer.shape) if constraints.refusal else ""
        if scheme.plain_dtype is None and not why and not _pair_refusal(constraints, layer, scheme, inputs):
            return True
    return False


def _by_time(
    times: StepTimes, tables: Sequence[_Table], kept: Mapping[str, tuple[int, int]], fused: bool
) -> TimeFrontier:
    rest = sum(time.seconds or 0.0 for time in times.unquantized(kept, fused))
    seconds, loss = _best_points([table.timed for table in tables])
    return TimeFrontier(times, seconds + rest, loss, rest, kept)


def best_methods(
    survey: Survey, layers: Sequence[Layer], signal: str, allowed: Sequence[str], fuse: bool
) -> dict[str, dict[str, str]]:
    """Layer -> scheme -> the one of the ``allowed`` methods that has the least predicted loss, where that is
    not rounding to nearest. With ``fuse`` layers that are multiplied as one matrix have one scale of the
    whole tensor."""
    if not allowed or not SENSITIVITIES[signal].is_loss:
        return {}
    fused = fused_groups(layer.name for layer in layers) if fuse else []
    joined = {name for group in fused if len(group) > 1 for name in group}
    # Layers that are multiplied as one share a scale of the whole tensor, which methods find by layer.
    shared = {text for text in survey.head.schemes if has_one_scale(Scheme.parse(text))}
    found: dict[str, dict[str, str]] = {}
    for layer in layers:
        best = {text: layer.best_method(text, allowed) for text in survey.head.schemes}
        left_out = shared if layer.name in joined else set()
        found[layer.name] = {text: by for text, by in best.items() if by and text not in left_out}
    return found


def _by_methods(layer: Layer, signal: str, methods: Mapping[str, str]) -> Layer:
    """``layer`` with the costs by ``signal`` that its schemes have by ``methods``."""
    costs = {text: layer.cost(signal, text, methods.get(text, "")) for text in layer.costs[signal]}
    return dataclasses.replace(layer, costs={**layer.costs, signal: costs})


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


def check_complete(survey: Survey) -> None:
    """``ValueError`` for a survey that was stopped before its last layer."""
    if not survey.complete:
        raise ValueError(
            f"the survey of {survey.head.model} was stopped after {len(survey.layers)} of "
            f"{survey.head.layers} layers: let it go on first, by the same `explorer survey` command"
        )


def _check_asked(survey: Survey, signal: str, constraints: Constraints) -> None:
    """``ValueError`` for a survey that was stopped, and for names that nothing in it has."""
    check_complete(survey)
    if signal not in survey.head.signals:
        raise ValueError(f"the survey has no signal {signal!r}; it has {', '.join(survey.head.signals)}")
    for name in constraints.schemes:
        if name not in survey.head.schemes:
            raise ValueError(f"the survey has no scheme {name!r}; it has {', '.join(survey.head.schemes)}")
    for name in constraints.methods or ():
        if name not in survey.head.methods:
            known = ", ".join(survey.head.methods) or "none"
            raise ValueError(f"the survey has no method {name!r}; it has {known}")
    matched(survey, constraints.keep)


def matched(survey: Survey, patterns: Sequence[str]) -> tuple[str, ...]:
    """The names of the layers that match one of ``patterns``; ``ValueError`` for a pattern without any."""
    for pattern in patterns if survey.linear else ():
        if not any(matches(layer.name, pattern) for layer in survey.layers):
            raise ValueError(
                f"no layer's name matches {pattern!r}: give a part of a name such as "
                f"{survey.linear[0].name}, or a pattern with * and ?"
            )
    return tuple(x.name for x in survey.layers if any(matches(x.name, pattern) for pattern in patterns))


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
    allowed: Mapping[str, set[Option]],
    signal: str,
    times: StepTimes | None = None,
) -> tuple[_Table, ...]:
    """A table for each family that has a scheme for every unit; ``ValueError`` if none has."""
    tables, errors = [], []
    for family in families:
        try:
            tables.append(_Table.of_layers(layers, groups, family, allowed, signal, times))
        except ValueError as error:
            errors.append(error)
    if not tables:
        raise errors[0]
    return tuple(tables)


def _uniform(tables: Sequence[_Table], names: Sequence[str], rest: float) -> tuple[Uniform, ...]:
    """The schemes that every unit of a table can have, in the order of ``names``; ``rest``: seconds of other
    layers."""
    found: dict[str, list[Uniform]] = {name: [] for name in names}
    for table in tables:
        every = np.arange(len(table.sizes))
        for name in table.names:
            own = [i for i, (scheme, _) in enumerate(table.options) if scheme == name]
            alike = [i for i in own if np.isfinite(table.sizes[:, i]).all()]
            picks = {table.options[i][1]: np.full(len(every), i) for i in alike}
            if not alike:  # each layer's inputs as they may be
                picks = {"": np.array(own)[table.costs[:, own].argmin(1)]}
            for inputs, pick in picks.items():
                size, cost = table.sizes[every, pick].sum(), float(table.costs[every, pick].sum())
                if np.isfinite(size):
                    took = None if table.seconds is None else rest + float(table.seconds[every, pick].sum())
                    said = inputs if len({x for _, x in table.options}) > 1 else ""
                    found[name].append(Uniform(name, float(size / table.weights), cost, took, said))
    return tuple(point for name in names for point in found[name])


def _best_points(paths: Sequence[HullPath]) -> tuple[np.ndarray, np.ndarray]:
    """Sizes and losses of all points that no smaller one is as good as."""
    size = np.concatenate([path.size_at for path in paths])
    cost = np.concatenate([path.cost_at for path in paths])
    order = np.lexsort((cost, size))
    size, cost = size[order], cost[order]
    best = np.r_[True, cost[1:] < np.minimum.accumulate(cost)[:-1]]
    return size[best], cost[best]


def recipe_of(
    survey: Survey,
    choice: Choice,
    signal: str = "",
    method: str = "",
    constraints: Constraints | None = None,
) -> ModelRecipe:
    """``choice``, made under ``constraints``, as a recipe; a predicted loss only where the signal predicts
    one. With ``method`` every layer is by that, whatever the choice has, but the table of embeddings, which
    has no inputs to choose codes by."""
    signal = signal or survey.head.default
    head, kept_to = survey.head, constraints or Constraints()
    inputs, own_inputs = _inputs_of(choice, kept_to)
    is_loss, added = SENSITIVITIES[signal].is_loss, None
    if is_loss and all(str(one) in head.inputs for one in kept_to.all_inputs) and kept_to.all_inputs:
        added = sum(survey.layer(name).inputs.get(text, 0.0) for name, text in choice.inputs.items())
    return ModelRecipe(
        head.model,
        head.revision,
        head.weights_sha256,
        {
            name: Recipe.parse(f"{s}+{by}" if by else s)
            for name, s in choice.schemes.items()
            for by in (_method_of(survey.layer(name), choice, method),)
        },
        signal,
        choice.bits,
        choice.loss if is_loss else None,
        head.versions,
        _chosen_from(survey, choice, kept_to),
        kept_to.target,
        kept_to.fuse,
        predicted_interval(
            survey, signal, choice.schemes, choice.methods, {} if added is None else choice.inputs
        ),
        inputs,
        head.texts_sha256,
        choice.time,
        own_inputs=own_inputs,
        predicted_inputs=added,
    )


def _inputs_of(choice: Choice, constraints: Constraints) -> tuple[Scheme | None, dict[str, Scheme | None]]:
    """How the inputs of most of a choice's layers are quantized, and those of the others."""
    if len(constraints.inputs) == 1 and not constraints.own_inputs:
        return constraints.inputs[0], {}
    coded = [name for name, text in choice.schemes.items() if Scheme.parse(text).plain_dtype is None]
    each = {name: choice.inputs.get(name, "") for name in coded}
    most = max(dict.fromkeys(each.values()), key=list(each.values()).count, default="")
    schemes = {text: Scheme.parse(text) if text else None for text in {most, *each.values()}}
    return schemes[most], {name: schemes[text] for name, text in each.items() if text != most}


def _method_of(layer: Layer, choice: Choice, method: str) -> str:
    """The method of a layer in a recipe: ``method`` if that is for all layers."""
    if not method:
        return choice.methods.get(layer.name, "")
    return "" if layer.is_table else method


def _chosen_from(survey: Survey, choice: Choice, constraints: Constraints) -> tuple[str, ...]:
    """The schemes that a choice was made from: with times only those that have one for some layer."""
    names, times = constraints.schemes or survey.head.schemes, constraints.times
    if times is None:
        return names
    shapes = {survey.layer(name).shape for name in choice.schemes}
    schemes = {name: Scheme.parse(name) for name in names}
    ways = (None, *constraints.all_inputs)
    return tuple(
        n for n in names if any(not times.refusal(schemes[n], shape, x) for shape in shapes for x in ways)
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
            why = constraints.table_refusal if layer.is_table else ""
            why = why or (of_all(scheme, layer.shape) if of_all else "")
            if not why and of_experts and is_expert(layer.name):
                why = of_experts(scheme)
            if not why:
                choices = constraints.inputs_of(layer.name, scheme)
                reasons = {one: _pair_refusal(constraints, layer, scheme, one) for one in choices}
                # Where none can be had, it is that of inputs as they are, if they may be.
                why = reasons.get(None, next(iter(reasons.values()))) if all(reasons.values()) else ""
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
    """Units (layers, or fused groups) × ``options``: ``sizes`` in bits, ``seconds`` if times are known, and
    ``costs``, infinite where a unit cannot have an option; and the frontier of each budget."""

    groups: Sequence[tuple[str, ...]]
    options: Sequence[Option]
    weights: int
    sizes: np.ndarray
    costs: np.ndarray
    by_bits: HullPath
    seconds: np.ndarray | None = None
    by_time: HullPath | None = None

    @classmethod
    def of_layers(
        cls,
        layers: Sequence[Layer],
        groups: Sequence[tuple[str, ...]],
        names: Sequence[str],
        allowed: Mapping[str, set[Option]],
        signal: str,
        times: StepTimes | None = None,
    ) -> _Table:
        """The table of ``groups`` of ``layers``; ``ValueError`` where a group has no scheme in common."""
        by_name = {layer.name: layer for layer in layers}
        ways = sorted({inputs for pairs in allowed.values() for _, inputs in pairs})
        options = [(name, inputs) for name in names for inputs in ways]
        sizes, costs, seconds = np.full((3, len(groups), len(options)), np.inf)
        parsed = {text: Scheme.parse(text) for text in (*names, *filter(None, ways))}
        for u, group in enumerate(groups):
            for s, (name, inputs) in enumerate(options):
                if not all((name, inputs) in allowed[x] for x in group):
                    continue
                if times is not None:
                    shapes = [by_name[x].shape for x in group]
                    every = times.together(parsed[name], shapes, parsed.get(inputs))
                    taken = [time.seconds for time in every if time.seconds is not None]
                    if len(taken) < len(every):
                        continue
                    seconds[u, s] = sum(taken)
                sizes[u, s] = sum(by_name[x].bits[name] * by_name[x].weights for x in group)
                own = (by_name[x] for x in group)
                costs[u, s] = sum(x.costs[signal][name] + x.inputs.get(inputs, 0.0) for x in own)
            if not np.isfinite(sizes[u]).any():
                who = f"{', '.join(group)} are fused, and" if len(group) > 1 else f"{group[0]}:"
                raise ValueError(f"{who} no scheme of {', '.join(names)} serves all of them")
        weights = sum(layer.weights for layer in layers)
        table = cls(groups, options, weights, sizes, costs, HullPath.of(sizes, costs))
        if times is None:
            return table
        return dataclasses.replace(table, seconds=seconds, by_time=HullPath.of(seconds, costs))

    @property
    def names(self) -> tuple[str, ...]:
        """The schemes of ``options``."""
        return tuple(dict.fromkeys(name for name, _ in self.options))

    @property
    def timed(self) -> HullPath:
        """The frontier of time, of a table that has it."""
        assert self.by_time is not None
        return self.by_time

    def within(self, size: float | None, seconds: float | None = None) -> tuple[Choice, float] | None:
        """The best choice within those budgets that are given, in bits and seconds, and what any such costs
        at least; None if there is none."""
        limits = [] if seconds is None else [(self.timed, seconds)]
        found = least_within(limits if size is None else [*limits, (self.by_bits, size)])
        return None if found is None else (self._choice(found.chosen), found.bound)

    def least_seconds(self, size: float | None) -> float:
        """The shortest time of all units, of at most ``size`` bits; infinite if they take more bits."""
        if size is None:
            return self.timed.least
        found = least_within([(HullPath.of(self.sizes, self.timed.sizes), size)])
        return np.inf if found is None else found.cost

    def of(self, schemes: Mapping[str, str]) -> tuple[Choice, float]:
        """See ``Frontier.of``; with what any choice of its size costs at least."""
        chosen = []
        for u, group in enumerate(self.groups):
            own = {schemes.get(name, "") for name in group}
            if len(own) > 1 or not own <= set(self.names):
                raise ValueError(f"{', '.join(group)}: choose one of {', '.join(self.names)}, not {own}")
            name = own.pop()
            alike = [i for i, (scheme, _) in enumerate(self.options) if scheme == name]
            chosen.append(min(alike, key=lambda i: self.costs[u, i]))
        indices = np.array(chosen)
        size = float(self.sizes[np.arange(len(chosen)), indices].sum())
        best = least_within([(self.by_bits, size)])
        return self._choice(indices), 0.0 if best is None else best.bound

    def _choice(self, chosen: np.ndarray) -> Choice:
        every = np.arange(len(chosen))
        size, cost = float(self.sizes[every, chosen].sum()), float(self.costs[every, chosen].sum())
        picked = {x: self.options[i] for group, i in zip(self.groups, chosen, strict=True) for x in group}
        schemes = {name: scheme for name, (scheme, _) in picked.items()}
        inputs = {name: text for name, (_, text) in picked.items() if text}
        return Choice(schemes, size / self.weights, round(size / 8), cost, 0.0, inputs=inputs)


def _rounded_up(number: float) -> float:
    """``number`` to four digits, no less than it is: a budget that a message names can be had."""
    unit = 10.0 ** (math.floor(math.log10(number)) - 3) if 0 < number < math.inf else 1.0
    return math.ceil(number / unit) * unit if math.isfinite(number) else number
