"""The model card of an export: the header that the Hub reads, the quantization, and how to open it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from huggingface_hub import ModelCardData, metadata_load
from yaml import YAMLError

from explorer import words
from explorer.checkpoints.target import Export, Plan, Shape, own_bits
from explorer.checkpoints.verify import Verified
from explorer.methods import corrects_bias, names_in
from explorer.methods.recipe import Recipe
from explorer.sources.safetensors_header import bytes_of
from explorer.version import __version__

CARD = "README.md"
_CARRIED = (
    "license", "license_name", "license_link", "library_name", "pipeline_tag", "language",
)  # fmt: skip
"""Keys of the original's card that hold for the quantized model too."""
_NUMBER = re.compile(r"\.\d+")
UNMEASURED = "How much the model lost was not measured."


def model_card(
    export: Export,
    plan: Plan,
    text: str,
    verified: Verified | None = None,
    size: int = 0,
    notes: Sequence[str] = (),
) -> str:
    """Markdown with a header for the Hub. ``text``: the measured loss, empty if not measured; ``size``: bytes
    of the files with weights; ``notes``: sentences on the codes."""
    folder = plan.model.folder
    title = hub_id(folder) or folder.name

    def stored(recipe: Recipe, shape: Shape) -> float:
        return export.stored_bits(recipe.scheme, shape, export.reads_in(plan))

    paragraphs = [
        f"Made from {words.code(title)} by Quantization Explorer {__version__}. Each layer below was "
        f"rounded as its row says; all other tensors are unchanged{_changed(plan)}.{_source(plan)}",
        scheme_table(plan.layers, plan.shape, stored),
        _size_words(plan, size),
        f"Inputs of the layers: {_inputs(plan)}.",
        str(verified or _unverified(export)),
        *(f"{note}." for note in notes),
        text.strip() or UNMEASURED,
        f"```python\n{export.load(plan)}\n```",
    ]
    return page(title, export, paragraphs, folder)


def _size_words(plan: Plan, size: int) -> str:
    weights = sum(info.elements for info in plan.model.infos)
    return (
        f"Bits are those of the files, which take {size:,} bytes: {8 * size / max(weights, 1):.3f} bits for "
        f"each of the model's {words.count(weights)} weights, layers that were kept included."
    )


def page(origin: str, export: Export, paragraphs: Sequence[str], folder: Path) -> str:
    """Markdown of a card: the header, a title that names the ``origin``, and the paragraphs. ``folder``: that
    of the original."""
    header = front_matter(folder, ("quantized", export.name))
    title = f"# {words.code(origin)}, quantized for {export.label}"
    return "\n\n".join([header, title, *paragraphs]) + "\n"


def restored_words(plan: Plan) -> Iterator[str]:
    """A sentence on weights that were published as codes and are written in the model's dtype."""
    kept = [name for name in plan.model.restored if name.removesuffix(".weight") not in plan.layers]
    if kept:
        dtype, more = str(plan.model.dtype).removeprefix("torch."), sum(map(plan.model.growth, kept))
        plural = "weight that is" if len(kept) == 1 else "weights that are"
        yield (
            f"{len(kept)} {plural} published as codes and not quantized anew, such as {kept[0]}, are "
            f"restored to {dtype}: that takes {more:,} bytes more"
        )


def _source(plan: Plan) -> str:
    """Describe a model that was published quantized; empty for others."""
    found = Counter(plan.model.stored_as.values())
    forms = ", ".join(f"{count} in {label}" for label, count in found.items())
    return (
        f" The original holds weights as codes ({forms}); what was rounded are their values." if forms else ""
    )


def _changed(plan: Plan) -> str:
    """Name the kinds of tensors that hold factors of methods, and of corrected biases; empty without any."""
    corrected = [name for name in plan.model.changed if _is_corrected_bias(name, plan)]
    folded = [name for name in plan.model.changed if name not in corrected]
    methods = dict.fromkeys(recipe.method for recipe in plan.layers.values() if recipe.method)
    labels = dict.fromkeys(row.label for name in methods for row in names_in(name) if row.factor)
    of = f" of {' and '.join(labels)}" if labels else ""
    what = [f"factors{of} were folded into {_kinds(folded)}"] if folded else []
    if corrected:
        what.append(f"the mean errors of layers were subtracted from {_kinds(corrected)}")
    return f", but {' and '.join(what)}" if what else ""


def _is_corrected_bias(name: str, plan: Plan) -> bool:
    layer = name.removesuffix(".bias")
    return layer != name and layer in plan.layers and corrects_bias(plan.layers[layer].method)


def _kinds(names: Sequence[str]) -> str:
    """Names of tensors in Markdown, with all blocks as one."""
    return ", ".join(map(words.code, dict.fromkeys(_NUMBER.sub(".N", name) for name in names)))


def _unverified(export: Export) -> str:
    return (
        f"This folder was not opened after it was written. Files of this layout were opened by "
        f"{export.reader}; weights are {export.exact}."
    )


def scheme_table(
    layers: Mapping[str, Recipe],
    shape: Callable[[str], Shape],
    stored: Callable[[Recipe, Shape], float] | None = None,
) -> str:
    """Markdown table of schemes and methods with their layers, weights and bits per weight. ``shape`` returns
    [N, K] of a layer, ``stored`` the bits per weight in the files; None: those of the scheme."""
    rows = ["| scheme | method | layers | weights | bits per weight |", "|---|---|---:|---:|---:|"]
    found: dict[tuple[str, str], list[str]] = {}
    for name, recipe in layers.items():
        found.setdefault((str(recipe.scheme), recipe.method or "rtn"), []).append(name)
    for (scheme, method), names in found.items():
        weights = sum(math.prod(shape(name)) for name in names)
        each = stored or (lambda recipe, of: own_bits(recipe.scheme, of))
        bits = sum(each(layers[name], shape(name)) * math.prod(shape(name)) for name in names)
        bits /= max(weights, 1)
        rows.append(f"| `{scheme}` | {method} | {len(names)} | {words.count(weights)} | {bits:.3f} |")
    return "\n".join(rows)


def least_bytes(plan: Plan) -> int:
    """The fewest bytes that codes, scales and all other tensors take."""
    kept = sum(bytes_of(info) for info in plan.model.infos if not plan.layer_of(info.name))
    shapes = {name: plan.shape(name) for name in plan.layers}
    coded = (
        own_bits(one.scheme, shapes[name]) * math.prod(shapes[name]) for name, one in plan.layers.items()
    )
    return int(sum(coded) / 8) + kept


def _inputs(plan: Plan) -> str:
    said = []
    for scheme in dict.fromkeys(plan.input_schemes.values()):
        names = [name for name, own in plan.input_schemes.items() if own == scheme]
        scales = "fixed scales" if plan.input_scales.keys() & set(names) else "scales found as they come"
        some = "" if len(names) == len(plan.coded) else f", in {len(names)} of {len(plan.coded)} layers"
        said.append(f"{scheme.label}, {scales}{some}")
    return "; ".join(said) or "not quantized"


def hub_id(folder: Path) -> str:
    """The Hub id of the model in ``folder``, if that is in the Hub's cache, else empty: config.json and the
    model's card name the model that it was trained from."""
    folder = Path(folder).absolute()
    if folder.parent.name == "snapshots" and folder.parent.parent.name.startswith("models--"):
        return folder.parent.parent.name.removeprefix("models--").replace("--", "/")
    return ""


def front_matter(folder: Path, tags: Sequence[str]) -> str:
    """The header of the card with its dashes, from the card of the original in ``folder`` if there is one."""
    stated = _stated(folder / CARD)
    data = {key: stated[key] for key in _CARRIED if stated.get(key)}
    if base := hub_id(folder):
        data |= {"base_model": base, "base_model_relation": "quantized"}
    return f"---\n{ModelCardData(**data, tags=list(tags)).to_yaml()}\n---"


def _stated(card: Path) -> dict[str, Any]:
    """The header of a card; empty if there is none that can be read."""
    try:
        return dict(metadata_load(card) or {})
    except (OSError, ValueError, YAMLError):
        return {}
