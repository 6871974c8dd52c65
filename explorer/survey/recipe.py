"""Recipe for a model, as a JSON file: the scheme and method of each layer, and the reasons for them."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any, Self

from explorer.analysis.cache import CachePlan
from explorer.cached import cached_property
from explorer.checkpoints.inputs import check_scheme
from explorer.export.files import replacing
from explorer.methods.recipe import Recipe
from explorer.schemes import Scheme
from explorer.schemes.scheme import todays_text
from explorer.sources.base import LONGEST_NAME
from explorer.survey.rows import MOST_LAYERS, RECIPE_KEY, bounded_text, checked, one_line, parsed_json
from explorer.survey.times import PredictedTime

VERSION = 1
KEY = RECIPE_KEY


@dataclass(frozen=True)
class ModelRecipe:
    """Scheme and method of each layer of a model, embeddings included; layers not named stay as they are.

    model               folder or Hub id as given
    weights_sha256      of its safetensors files, "" if it was not computed
    layers              name of a weight's tensor without ".weight" -> its ``Recipe``
    signal              the row of ``SENSITIVITIES`` that it was chosen by, "" for a uniform recipe
    bits                mean bits per weight over ``layers``, scales and zero points counted
    predicted_loss      of the weights alone: by the layers' methods if the survey chose them, by rounding to
                        nearest if one method is set for all; None if the signal predicts none
    versions            of the packages that affect the choice
    schemes             texts of the schemes that it was chosen from, empty if unknown
    target              the checkpoint format that it was made for, "" for none
    fused               True if layers that engines multiply as one matrix have one scheme
    predicted_interval  95 % interval over calibration texts (``survey.interval``), if the survey gives it
    inputs              scheme of the inputs of its layers of codes, except those that ``own_inputs`` names;
                        a scheme of the whole tensor has a fixed scale for each layer, whose range its
                        calibrator finds; None: not quantized
    texts_sha256        of the texts that the survey was calibrated by, "" if it ran none
    predicted_time      of the linear layers in one step, if a budget of time was asked for
    cache               storage of keys and values when the model runs; None: exact
    """

    model: str
    revision: str | None
    weights_sha256: str
    layers: Mapping[str, Recipe]
    signal: str = ""
    bits: float | None = None
    predicted_loss: float | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    schemes: tuple[str, ...] = ()
    target: str = ""
    fused: bool = False
    predicted_interval: tuple[float, float] | None = None
    inputs: Scheme | None = None
    texts_sha256: str = ""
    predicted_time: PredictedTime | None = None
    cache: CachePlan | None = None
    own_inputs: Mapping[str, Scheme | None] = field(default_factory=dict)

    def __post_init__(self) -> None:
        if not self.layers:
            raise ValueError("a recipe names at least one layer")
        numbers = (self.bits, self.predicted_loss, *(self.predicted_interval or ()))
        for number in numbers:
            if number is not None and not (math.isfinite(number) and number >= 0):
                raise ValueError(f"a recipe's bits and predicted loss are numbers from 0, not {number}")
        for name, inputs in (("", self.inputs), *self.own_inputs.items()):
            if name and name not in self.layers:
                raise ValueError(f"the recipe says how inputs of {name} are quantized, and has no such layer")
            if inputs is not None:
                check_scheme(inputs)

    def inputs_of(self, layer: str) -> Scheme | None:
        """The scheme of the inputs of ``layer`` if it holds codes; None: not quantized."""
        return self.own_inputs.get(layer, self.inputs)

    @cached_property
    def input_schemes(self) -> dict[str, Scheme]:
        """Layer of codes -> the scheme of its inputs, if they are quantized."""
        coded = (name for name, one in self.layers.items() if one.scheme.plain_dtype is None)
        found = ((name, self.inputs_of(name)) for name in coded)
        return {name: inputs for name, inputs in found if inputs is not None}

    @property
    def counts(self) -> dict[str, int]:
        """Number of layers by the text of their recipe."""
        counts: dict[str, int] = {}
        for recipe in self.layers.values():
            counts[str(recipe)] = counts.get(str(recipe), 0) + 1
        return counts

    def to_json(self) -> str:
        """The recipe as JSON text, a layer a line."""
        own = {"own_inputs": {name: str(one or "") for name, one in self.own_inputs.items()}}
        about: dict[str, Any] = {
            KEY: VERSION,
            "model": self.model,
            "revision": self.revision,
            "weights_sha256": self.weights_sha256,
            "signal": self.signal,
            "schemes": list(self.schemes),
            "target": self.target,
            "fused": self.fused,
            "inputs": "" if self.inputs is None else str(self.inputs),
            "bits": self.bits,
            "predicted_loss": self.predicted_loss,
            "predicted_interval": self.predicted_interval,
            "texts_sha256": self.texts_sha256,
            "predicted_time": None if self.predicted_time is None else asdict(self.predicted_time),
            "cache": None if self.cache is None else asdict(_Cache.of(self.cache)),
            **(own if self.own_inputs else {}),
            "versions": dict(self.versions),
            "layers": {name: str(recipe) for name, recipe in self.layers.items()},
        }
        return json.dumps(about, indent=1, ensure_ascii=False) + "\n"

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Read a recipe from JSON text; ``ValueError`` names the defect."""
        found = parsed_json(text, "the recipe")
        if not isinstance(found, dict) or KEY not in found:
            raise ValueError(
                f"this is no recipe: that is a JSON object with {KEY!r}, as `explorer recipe` writes"
            )
        if found.pop(KEY) != VERSION:
            raise ValueError(f"this recipe is of another version; version {VERSION} is read")
        file = checked(_File, found, "the recipe")
        if len(file.layers) > MOST_LAYERS:
            raise ValueError(f"the recipe has {len(file.layers):,} layers; at most {MOST_LAYERS:,} are read")
        if max(map(len, file.layers), default=0) > LONGEST_NAME:
            raise ValueError(f"the recipe has a layer's name of more than {LONGEST_NAME} characters")
        layers = {name: _recipe(name, text) for name, text in file.layers.items()}
        schemes = tuple(todays_text(text) for text in file.schemes)
        inputs = Scheme.parse(file.inputs) if file.inputs else None
        own = {name: Scheme.parse(text) if text else None for name, text in file.own_inputs.items()}
        cache = None if file.cache is None else file.cache.plan
        read = {"layers": layers, "schemes": schemes, "inputs": inputs, "cache": cache, "own_inputs": own}
        told = {**vars(file), **read}
        if (added := told.pop("predicted_inputs")) is not None and file.predicted_loss is not None:
            # Files of earlier versions may add what quantized inputs lose.
            told |= {"predicted_loss": max(file.predicted_loss - added, 0.0), "predicted_interval": None}
        return cls(**told)

    def save(self, path: str | Path) -> None:
        """Write the recipe; the file is whole or not there. ``OSError`` if it cannot be written."""
        write_text(path, self.to_json())

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a recipe's file; ``ValueError`` for invalid content, ``OSError`` if it cannot be read."""
        path = Path(path)
        with one_line():
            try:
                return cls.from_json(bounded_text(path, "recipe"))
            except ValueError as error:  # not UTF-8 too
                raise ValueError(f"{path.name}: {error}") from error


@dataclass(frozen=True)
class _Cache:
    """Cache in a recipe's file: schemes, "" for exact parts."""

    keys: str
    values: str
    recent: int
    rotated: bool

    @classmethod
    def of(cls, plan: CachePlan) -> Self:
        keys, values = ("" if scheme is None else str(scheme) for _, scheme in plan.parts)
        return cls(keys, values, plan.recent, plan.rotated)

    @property
    def plan(self) -> CachePlan:
        """Return the plan of the cache; ``ValueError`` for schemes that a cache cannot have."""
        return CachePlan.parse(f"{self.keys}/{self.values}", self.recent, self.rotated)


@dataclass(frozen=True)
class _File:
    """Content of a recipe's file, without its version."""

    model: str
    revision: str | None
    weights_sha256: str
    layers: dict[str, str]
    signal: str = ""
    bits: float | None = None
    predicted_loss: float | None = None
    versions: dict[str, str] = field(default_factory=dict)
    schemes: tuple[str, ...] = ()
    target: str = ""
    fused: bool = False
    predicted_interval: tuple[float, float] | None = None
    inputs: str = ""
    texts_sha256: str = ""
    predicted_time: PredictedTime | None = None
    cache: _Cache | None = None
    own_inputs: dict[str, str] = field(default_factory=dict)
    predicted_inputs: float | None = None


def _recipe(layer: str, text: str) -> Recipe:
    try:
        return Recipe.parse(text)
    except ValueError as error:
        raise ValueError(f"{layer}: {error}") from error


def write_text(path: str | Path, text: str) -> None:
    """Write a text file under another name and rename it, so that readers find all of it or none."""
    with replacing(path) as partial:
        partial.write_text(text, encoding="utf-8")
