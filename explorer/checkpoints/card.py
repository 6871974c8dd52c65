"""Model card of an exported model: its quantization, the tools, and how to open it."""

from __future__ import annotations

from explorer import words
from explorer.checkpoints.export import Export, Plan
from explorer.checkpoints.verify import Verified
from explorer.sources.safetensors_header import NAMES
from explorer.version import __version__

CARD = "README.md"


def model_card(export: Export, plan: Plan, text: str, verified: Verified | None = None) -> str:
    """Markdown with a header for the Hub; ``text`` describes the measured loss, empty if not measured."""
    folder, stated = plan.model.folder.name, plan.model.config.get("_name_or_path")
    origin = stated if stated and isinstance(stated, str) else folder
    lines = [
        "---",
        f"tags: [quantized, {export.name}]",
        "---",
        "",
        f"# {words.code(folder)}, quantized for {export.label}",
        "",
        f"Made from {words.code(origin)} by Quantization Explorer {__version__}. Each layer below was "
        f"rounded as its row says; all other tensors are what they were{_restored(plan)}.",
        "",
        _table(plan),
        "",
        f"Inputs of the layers: {_inputs(plan)}.",
        "",
        str(verified or _unverified(export)),
        "",
        text.strip() or "How much the model lost was not measured.",
        "",
        "```python",
        export.load(plan),
        "```",
        "",
    ]
    return "\n".join(lines)


def _restored(plan: Plan) -> str:
    """What became of weights that the model's files hold as codes and that hold no new ones."""
    kept = [name for name in plan.model.restored if name.removesuffix(".weight") not in plan.layers]
    if not kept:
        return ""
    dtype = str(plan.model.dtype).removeprefix("torch.")
    return f", {len(kept)} of them restored to {dtype} from the codes that the model is published in"


def _unverified(export: Export) -> str:
    return (
        f"This folder was not opened after it was written. Its layout is tested with {export.reader}: "
        f"weights {export.exact}."
    )


def _table(plan: Plan) -> str:
    rows = ["| scheme | method | layers | weights | bits a weight |", "|---|---|---:|---:|---:|"]
    found: dict[tuple[str, str], list[str]] = {}
    for name, recipe in plan.layers.items():
        found.setdefault((str(recipe.scheme), recipe.method or "rtn"), []).append(name)
    for (scheme, method), names in found.items():
        weights = sum(plan.shape(name)[0] * plan.shape(name)[1] for name in names)
        bits = sum(_bits(plan, name) for name in names) / max(weights, 1)
        rows.append(f"| `{scheme}` | {method} | {len(names)} | {words.count(weights)} | {bits:.3f} |")
    return "\n".join(rows)


def _bits(plan: Plan, name: str) -> float:
    shape = plan.shape(name)
    return plan.layers[name].scheme.bits_per_element(shape).total * shape[0] * shape[1]


def least_bytes(plan: Plan) -> int:
    """Bytes that codes, scales and all other tensors take, at least."""
    coded = {f"{name}.weight" for name in plan.layers}
    sizes = {name: dtype.itemsize for dtype, name in NAMES.items()}
    kept = sum(i.elements * sizes.get(i.dtype, 1) for i in plan.model.infos if i.name not in coded)
    return int(sum(_bits(plan, name) for name in plan.layers) / 8) + kept


def _inputs(plan: Plan) -> str:
    if plan.inputs is None:
        return "not quantized"
    return f"{plan.inputs.label}, {'fixed scales' if plan.input_scales else 'scales found as they come'}"
