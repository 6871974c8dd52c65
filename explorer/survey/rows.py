"""The file of a survey, in JSON lines: first a head, which describes the survey, then a line for each layer.

The file of a stopped survey holds the layers so far. Lines are validated against the types here, so that
nothing behind this module handles unchecked values.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from functools import cache
from pathlib import Path
from typing import Any, TypeVar, cast

from pydantic import TypeAdapter, ValidationError

from explorer.cached import cached_property
from explorer.models.files import Role, itemsize
from explorer.models.kinds import KINDS
from explorer.paths import ASSETS
from explorer.progress import checkpoint
from explorer.schemes.scheme import todays_text
from explorer.sources.base import LONGEST_NAME
from explorer.sources.coded import stored_bits
from explorer.survey.sensitivities import SENSITIVITIES
from explorer.words import plain

SURVEYS = ASSETS / "surveys"
"""Folder of the surveys that ship with the explorer."""
VERSION = 1
"""Version of the file. Others are refused, as the meaning of costs may have changed."""
MOST = 1 << 30
"""Longest accepted axis of a layer; its square is the largest accepted number of weights or bytes."""
MOST_BYTES = 1 << 24
"""Largest accepted size of the file of a survey or a recipe: 225 layers by 14 schemes and one signal take
0.2 MB."""
MOST_LINE = 1 << 20
"""Longest accepted line of a survey: parsing one cannot be stopped."""
MOST_LAYERS = 20_000
"""Most layers of a survey or a recipe, and the end of their depths."""
MOST_SCHEMES = 200
"""Most schemes of a survey."""
MOST_PARTS = 100_000
"""Most commas of a recipe, or of a line of a survey."""
MOST_DEFECTS = 100
"""Most defects of a line, or of a recipe, of which the first is described: all are, to describe one."""
MOST_NUMBERS = 1 << 20
"""Most sizes, costs and shares of all layers of a survey: in a file, a number can take 4 bytes."""
FOLDS = 8
"""Largest number of folds that calibration texts are dealt into."""
RECIPE_KEY = "explorer_recipe"
"""Key that marks a JSON file as a recipe; its value is the version."""
FIRST = b'{"model":'
"""Beginning of a survey's file."""
_LONGEST_DTYPE = 100
_MOST_WORDS = 600
"""Characters of a refusal."""
DIGITS = 7
"""Significant digits of measured numbers."""
Parsed = TypeVar("Parsed")


@dataclass(frozen=True)
class Head:
    """First line of a survey: the model, the request, and the versions.

    schemes         texts that ``Scheme.parse`` reads
    signals         rows of ``SENSITIVITIES`` that every layer has costs of; ``default``: the one to choose by
    layers          number of lines that follow
    parameters      of the whole model
    kept_bytes      size of the tensors that no scheme is chosen for, as they are stored; ``kept_parts``: the
                    same by kind of tensor
    loss            unit of a cost of 1: "embedding" (mean of 1 - cosine) or "next token" (mean KL in nats);
                    empty if the model was not run, with the reason in ``why``
    texts           number of calibration texts that were run, of ``tokens`` tokens; ``texts_left_out`` had
                    fewer than two
    texts_sha256    of the calibration texts
    part            the part of the model that texts run, empty for all
    include         patterns that the survey was asked for; ``exclude`` likewise
    embeddings      True if the table of tokens' embeddings is among the layers that have costs
    methods         beside rounding to nearest, those that layers have shares of (``Layer.methods``)
    """

    model: str
    revision: str | None
    weights_sha256: str
    schemes: tuple[str, ...]
    signals: tuple[str, ...]
    default: str
    layers: int
    parameters: int
    kept_bytes: int
    loss: str = ""
    why: str = ""
    texts: int = 0
    tokens: int = 0
    texts_sha256: str = ""
    texts_left_out: int = 0
    part: str = ""
    kept_parts: Mapping[str, int] = field(default_factory=dict)
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    embeddings: bool = False
    versions: Mapping[str, str] = field(default_factory=dict)
    version: int = VERSION
    methods: tuple[str, ...] = ()


@dataclass(frozen=True)
class Layer:
    """Line of a survey: a linear layer, an embedding or head, or the experts of a block as one matrix.

    depth    index of its block
    squares  ‖W‖²
    bits     scheme -> bits per weight; like ``costs`` empty for layers that are only listed
    costs    signal -> scheme -> the cost of rounding the layer to nearest; "weight" is ‖W - Ŵ‖²
    fisher   mean squared gradient of its weights; ``folds``: the same of each fold of the calibration texts
             (``survey.interval``; none in files of earlier versions)
    reached  False for a layer that the loss does not depend on: it has no cost, and stays as it is
    texts    number of texts that gave it a gradient
    methods  method -> scheme -> predicted loss as a share of the loss of rounding (``survey.methods``);
             schemes that a method does not support are absent; no methods if the inputs were not seen
    """

    name: str
    shape: tuple[int, int]
    dtype: str
    role: Role
    kind: str
    depth: int | None
    squares: float = 0.0
    bits: Mapping[str, float] = field(default_factory=dict)
    costs: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    fisher: float | None = None
    folds: tuple[float, ...] = ()
    reached: bool = True
    texts: int | None = None
    seconds: float = 0.0
    methods: Mapping[str, Mapping[str, float]] = field(default_factory=dict)

    @property
    def weights(self) -> int:
        """The number of its weights."""
        return math.prod(self.shape)

    @property
    def stored_bytes(self) -> int:
        """Bytes of its weight as the model stores it."""
        return round(self.weights * itemsize(self.dtype))

    @property
    def growth(self) -> int:
        """Bytes by which the weight grows in a checkpoint that keeps the layer as it is: codes are restored
        to 16 bits."""
        restored = stored_bits(self.dtype) is not None
        return 2 * self.weights - self.stored_bytes if restored else 0

    @property
    def is_table(self) -> bool:
        """True for the tokens' embeddings, whose rows are looked up; a head may multiply by them too."""
        return self.role is Role.EMBEDDING

    def cost(self, signal: str, scheme: str, method: str = "") -> float:
        """The cost by ``signal`` of the codes of ``method`` under ``scheme``, or of rounding to nearest if
        empty. ``KeyError`` for names that the survey lacks."""
        cost = self.costs[signal][scheme]
        return cost * self.methods[method][scheme] if method else cost

    def best_method(self, scheme: str, methods: Sequence[str]) -> str:
        """The method of ``methods`` with the least predicted loss; empty if rounding to nearest is as
        good."""
        shares = {name: self.methods.get(name, {}).get(scheme, 1.0) for name in methods}
        least = min(shares, key=lambda name: shares[name], default="")
        return least if least and shares[least] < 1 else ""

    def sqnr_db(self, scheme: str) -> float:
        """10 log10(‖W‖² / ‖W - Ŵ‖²), infinite if nothing was lost."""
        error = self.costs["weight"][scheme]
        return 10 * math.log10(self.squares / error) if error and self.squares else math.inf


@dataclass(frozen=True)
class Survey:
    """Content of a survey's file; ``complete`` unless the survey was stopped."""

    head: Head
    layers: tuple[Layer, ...]

    @property
    def complete(self) -> bool:
        return len(self.layers) == self.head.layers

    @cached_property
    def linear(self) -> tuple[Layer, ...]:
        """The layers that schemes can be chosen for: linear ones, the head, and the table of embeddings, if
        the loss depends on them."""
        return tuple(layer for layer in self.layers if layer.bits and layer.reached)

    def layer(self, name: str) -> Layer:
        """The layer called ``name``; ``ValueError`` if there is none."""
        found = self._by_name.get(name)
        if found is None:
            raise ValueError(f"the survey of {self.head.model} has no layer {name!r}")
        return found

    @cached_property
    def _by_name(self) -> dict[str, Layer]:
        return {layer.name: layer for layer in self.layers}


def load_survey(path: str | Path) -> Survey:
    """Load a survey's file, finished or stopped.

    ``ValueError`` for another file, another version, and a broken line; a last line that was cut off is
    ignored, as that layer is surveyed again.
    """
    with one_line():
        return _loaded(Path(path))


@contextmanager
def one_line() -> Iterator[None]:
    """Put a ``ValueError`` about an untrusted file on one line of bounded length without control
    characters."""
    try:
        yield
    except ValueError as error:
        raise ValueError(plain(str(error), _MOST_WORDS)) from error


def _loaded(path: Path) -> Survey:
    lines = _lines(path)
    if not lines:
        raise ValueError(f"{path.name} is empty: no survey begins in it")
    if lines[0].strip() == "{" and len(lines) > 1 and lines[1].strip().startswith(f'"{RECIPE_KEY}"'):
        raise ValueError(f"{path.name} is a recipe, no survey: `explorer check` and `explorer apply` read it")
    first = parsed_json(lines[0], f"{path.name}: line 1")
    if not isinstance(first, dict) or "schemes" not in first:
        raise ValueError(f"{path.name} is no survey: `explorer survey` writes those")
    if first.get("version") != VERSION:
        raise ValueError(
            f"{path.name} is a survey of version {first.get('version')}; version {VERSION} is read: survey "
            "the model again"
        )
    head = checked(Head, first, f"{path.name}: line 1")
    _check_head(head, path.name)
    names = {text: todays_text(text) for text in head.schemes}
    signals = tuple(signal for signal in SENSITIVITIES if signal in head.signals)
    today = replace(head, schemes=tuple(dict.fromkeys(names.values())), signals=signals)
    layers: dict[str, Layer] = {}
    numbers = 0
    for number, line in enumerate(lines[1:], 2):
        checkpoint()
        place = f"{path.name}: line {number}"
        layer = _of_today(checked(Layer, parsed_json(line, place), place), names)
        _check_cells(today, layer, path.name)
        cells = (layer.bits, layer.costs, layer.methods, *layer.costs.values(), *layer.methods.values())
        numbers += sum(map(len, cells))
        if numbers > MOST_NUMBERS:
            raise ValueError(f"{path.name} has more than {MOST_NUMBERS:,} numbers")
        if layers.setdefault(layer.name, layer) is not layer or len(layers) > head.layers:
            raise ValueError(f"{place}: a layer twice, or more than the {head.layers} that are announced")
    return Survey(today, tuple(layers.values()))


def _of_today(layer: Layer, names: Mapping[str, str]) -> Layer:
    """Update a layer of an old survey: spell schemes as today, and drop signals of earlier versions."""

    def respelled(cells: Mapping[str, float]) -> dict[str, float]:
        return {names.get(text, text): number for text, number in cells.items()}

    return replace(
        layer,
        bits=respelled(layer.bits),
        costs={signal: respelled(c) for signal, c in layer.costs.items() if signal in SENSITIVITIES},
        methods={method: respelled(c) for method, c in layer.methods.items()},
    )


def _lines(path: Path) -> list[str]:
    """Split off the complete lines of a file."""
    try:
        text = bounded_text(path, "survey")
    except UnicodeDecodeError as error:
        raise ValueError(f"{path.name} is no survey: it is not UTF-8 text") from error
    if text.count("\n") > 2 * MOST_LAYERS:
        raise ValueError(f"{path.name} has more than {2 * MOST_LAYERS:,} lines")
    lines = [line for line in text[: text.rfind("\n") + 1].split("\n") if line.strip()]
    if len(lines) > MOST_LAYERS + 1:
        raise ValueError(f"{path.name} has {len(lines) - 1:,} layers; a survey has at most {MOST_LAYERS:,}")
    if any(len(line) > MOST_LINE for line in lines):
        raise ValueError(f"{path.name} has a line of more than {MOST_LINE:,} characters")
    return lines


def bounded_text(path: Path, kind: str) -> str:
    """The text of a file of a ``kind``; ``ValueError`` before more than ``MOST_BYTES`` are read."""
    with path.open("rb") as file:
        data = file.read(MOST_BYTES + 1)
    if len(data) > MOST_BYTES:
        raise ValueError(f"{path.name} is too large; the file of a {kind} has at most {MOST_BYTES:,} bytes")
    return data.decode()


def _check_head(head: Head, name: str) -> None:
    if head.default in head.signals and head.default not in SENSITIVITIES:
        raise ValueError(f"{name} ranks layers by {head.default!r}, which is gone: survey the model again")
    if head.default not in head.signals:
        raise ValueError(f"{name}: line 1 is wrong: default {head.default!r} is none of its signals")
    if len(head.schemes) > MOST_SCHEMES:
        raise ValueError(f"{name} has {len(head.schemes):,} schemes; a survey has at most {MOST_SCHEMES}")
    counts = {"layers": head.layers, "parameters": head.parameters, "kept_bytes": head.kept_bytes}
    counts |= {"texts": head.texts, "tokens": head.tokens, "texts_left_out": head.texts_left_out}
    for what, count in counts.items():
        if not 0 <= count <= MOST**2:
            raise ValueError(f"{name}: line 1 is wrong: {what} is no number from 0 to {MOST**2:,}")


def _check_cells(head: Head, layer: Layer, name: str) -> None:
    if len(layer.name) > LONGEST_NAME or layer.kind not in KINDS or len(layer.folds) > FOLDS:
        raise ValueError(
            f"{name} has a layer {layer.name[:40]!r} of kind {layer.kind[:40]!r} and {len(layer.folds)} "
            f"folds; a name has at most {LONGEST_NAME} characters, a layer at most {FOLDS} folds, and a kind "
            f"is one of {', '.join(KINDS)}"
        )
    if len(layer.dtype) > _LONGEST_DTYPE:
        raise ValueError(f"{name}: {layer.name[:40]!r} has a dtype of more than {_LONGEST_DTYPE} characters")
    if not all(1 <= axis <= MOST for axis in layer.shape):
        raise ValueError(f"{name}: {layer.name} has the shape {layer.shape}; axes are from 1 to {MOST:,}")
    wanted, cells = set(head.schemes), [layer.bits, *layer.costs.values(), *layer.methods.values()]
    signals = head.signals if layer.bits and layer.reached else ()
    if any(set(layer.costs.get(signal, ())) != wanted for signal in signals):
        raise ValueError(f"{name}: {layer.name} lacks a scheme or signal that the first line names")
    known = set(layer.costs) <= set(head.signals) and set(layer.methods) <= set(head.methods)
    if not known or any(set(cell) - wanted for cell in cells) or (layer.bits and set(layer.bits) != wanted):
        raise ValueError(f"{name}: {layer.name} has not the signals, methods and schemes of the first line")
    numbers = [value for cell in cells for value in cell.values()]
    numbers += [layer.squares, layer.fisher or 0.0, *layer.folds]
    if not all(0 <= value < math.inf for value in numbers):
        raise ValueError(f"{name}: {layer.name} has a size or cost that is no number from 0")
    if not 0 <= (layer.depth or 0) < MOST_LAYERS:
        raise ValueError(f"{name}: {layer.name} has a depth that is no number from 0 to {MOST_LAYERS - 1:,}")


def parsed_json(text: str, what: str) -> Any:
    """Parse ``text`` as JSON; ``ValueError`` names it as ``what``."""
    if text.count(",") > MOST_PARTS:  # each may have a defect, and the description of one takes a kilobyte
        raise ValueError(f"{what} has more than {MOST_PARTS:,} parts")
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise ValueError(f"{what} is no JSON: {str(error)[:100]}") from error


def checked(kind: type[Parsed], value: Any, what: str) -> Parsed:
    """Validate ``value`` as the dataclass ``kind``; ``ValueError`` names it as ``what``, and the place of the
    first defect."""
    try:
        return cast(Parsed, _adapter(cast(Any, kind)).validate_python(value))
    except ValidationError as error:
        if error.error_count() > MOST_DEFECTS:
            raise ValueError(f"{what} is wrong in {error.error_count():,} places") from error
        first = error.errors()[0]
        place = ".".join(map(str, first["loc"])) or "the whole"
        raise ValueError(f"{what} is wrong: {place}: {first['msg']}") from error


@cache
def _adapter(kind: type) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def line_of(row: Head | Layer) -> str:
    """Write a head or layer as its line, numbers to ``DIGITS`` digits."""
    return json.dumps(_rounded(asdict(row)), separators=(",", ":"), ensure_ascii=False) + "\n"


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{DIGITS}g}")
    if isinstance(value, Mapping):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list | tuple) else value


def head_differs(found: Head, wanted: Head) -> Iterator[str]:
    """Describe the differences between a file's head and the survey that is to continue it."""
    names = {
        "model": "the model",
        "revision": "the revision",
        "weights_sha256": "the weights",
        "schemes": "the schemes",
        "signals": "the signals",
        "methods": "the methods",
        "texts_sha256": "the texts",
        "include": "the included layers",
        "exclude": "the excluded layers",
        "embeddings": "whether embeddings are surveyed",
        "layers": "the number of layers",
        "versions": "the versions",
    }
    for name, words in names.items():
        mine, theirs = getattr(wanted, name), getattr(found, name)
        if mine != theirs:
            yield f"{words} ({_short(theirs)} there, {_short(mine)} now)"


def _short(value: Any) -> str:
    text = (", ".join(value) or "none") if isinstance(value, tuple) else str(value)
    return text if len(text) <= 60 else text[:57] + "..."
