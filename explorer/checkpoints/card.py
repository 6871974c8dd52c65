"""Model card of an exported model: its quantization, the tools, and how to open it."""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path

from explorer import words
from explorer.checkpoints.front_matter import front_matter, hub_id
from explorer.checkpoints.target import Export, Plan, Shape
from explorer.checkpoints.verify import Verified
from explorer.methods import corrects_bias, names_in
from explorer.methods.recipe import Recipe
from explorer.sources.safetensors_header import NAMES
from explorer.version import __version__

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
    """Markdown with a header for the Hub; ``text`` describes the measured loss, empty if not measured.
    ``size``: bytes of all files that hold weights. ``notes``: sentences on the codes."""
    folder = plan.model.folder
    title = hub_id(folder) or folder.name
    paragraphs = [
        f"Made from {words.code(title)} by Quantization Explorer {__version__}. Each layer below was "
        f"rounded as its row says; all other tensors are what they were{_changed(plan)}.{_source(plan)}",
        scheme_table(plan.layers, plan.shape, lambda one, shape: _stored_bits(export, plan, one, shape)),
        _size_words(plan, size),
        f"Inputs of the layers: {_inputs(plan)}.",
        str(verified or _unverified(export)),
        *(f"{note}." for note in notes),
        text.strip() or UNMEASURED,
        f"```python\n{export.load(plan)}\n```",
    ]
    return page(title, export, paragraphs, folder)


def _stored_bits(export: Export, plan: Plan, recipe: Recipe, shape: Shape) -> float:
    return export.stored_bits(recipe.scheme, shape, export.reads_in(plan))


def _size_words(plan: Plan, size: int) -> str:
    weights = sum(info.elements for info in plan.model.infos)
    return (
        f"Bits are those of the files, which take {size:,} bytes: {8 * size / max(weights, 1):.3f} bits for "
        f"each of the model's {words.count(weights)} weights, layers that were kept included."
    )


def page(origin: str, export: Export, paragraphs: Sequence[str], folder: Path) -> str:
    """Markdown of a card: the header for the Hub, the title, which names the origin, and the paragraphs.
    ``folder``: that of the original."""
    header = front_matter(folder, ("quantized", export.name))
    title = f"# {words.code(origin)}, quantized for {export.label}"
    return "\n\n".join([header, title, *paragraphs]) + "\n"


def restored_words(plan: Plan) -> Iterator[str]:
    """Say how much larger weights become that the model's files hold as codes and that hold no new ones."""
    kept = [name for name in plan.model.restored if name.removesuffix(".weight") not in plan.layers]
    if kept:
        dtype, more = str(plan.model.dtype).removeprefix("torch."), sum(map(plan.model.growth, kept))
        plural = "weight that is" if len(kept) == 1 else "weights that are"
        yield (
            f"{len(kept)} {plural} published as codes and not quantized anew, such as {kept[0]}, are "
            f"restored to {dtype}: that takes {more:,} bytes more"
        )


def _source(plan: Plan) -> str:
    """What the weights were before, of a model that is published quantized."""
    found = Counter(plan.model.stored_as.values())
    forms = ", ".join(f"{count} in {label}" for label, count in found.items())
    return (
        f" The original holds weights as codes ({forms}); what was rounded are their values." if forms else ""
    )


def _changed(plan: Plan) -> str:
    """Which tensors took in factors of the methods, and which biases these corrected, each kind once; empty
    for none."""
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
    """Names of tensors in Markdown, those of all blocks as one."""
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
    """Markdown table of schemes and methods: their layers, weights and bits per weight. ``shape`` gives the
    [N, K] of a layer, ``stored`` the bits per weight in the files, those of the scheme if None."""
    rows = ["| scheme | method | layers | weights | bits per weight |", "|---|---|---:|---:|---:|"]
    found: dict[tuple[str, str], list[str]] = {}
    for name, recipe in layers.items():
        found.setdefault((str(recipe.scheme), recipe.method or "rtn"), []).append(name)
    for (scheme, method), names in found.items():
        weights = sum(math.prod(shape(name)) for name in names)
        each = stored or (lambda recipe, of: recipe.scheme.bits_per_element(of).total)
        bits = sum(each(layers[name], shape(name)) * math.prod(shape(name)) for name in names)
        bits /= max(weights, 1)
        rows.append(f"| `{scheme}` | {method} | {len(names)} | {words.count(weights)} | {bits:.3f} |")
    return "\n".join(rows)


def _bits(recipe: Recipe, shape: Shape) -> float:
    return recipe.scheme.bits_per_element(shape).total * math.prod(shape)


def least_bytes(plan: Plan) -> int:
    """Bytes that codes, scales and all other tensors take, at least."""
    coded = {f"{name}.weight" for name in plan.layers}
    sizes = {name: dtype.itemsize for dtype, name in NAMES.items()}
    kept = sum(i.elements * sizes.get(i.dtype, 1) for i in plan.model.infos if i.name not in coded)
    coded_bits = sum(_bits(recipe, plan.shape(name)) for name, recipe in plan.layers.items())
    return int(coded_bits / 8) + kept


def _inputs(plan: Plan) -> str:
    said = []
    for scheme in dict.fromkeys(plan.input_schemes.values()):
        names = [name for name, own in plan.input_schemes.items() if own == scheme]
        scales = "fixed scales" if plan.input_scales.keys() & set(names) else "scales found as they come"
        some = "" if len(names) == len(plan.coded) else f", in {len(names)} of {len(plan.coded)} layers"
        said.append(f"{scheme.label}, {scales}{some}")
    return "; ".join(said) or "not quantized"
