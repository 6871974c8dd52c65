"""Open a checkpoint by the code on its card, compare it with the weights that it was made of, and run both
once."""

from __future__ import annotations

import copy
import math
import zlib
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from explorer.checkpoints import vllm_reader
from explorer.checkpoints.target import Export, Plan
from explorer.core.backend import memory_bytes
from explorer.core.quantize import QuantizedTensor
from explorer.models.inputs import quantized_inputs
from explorer.progress import checkpoint
from explorer.sources import open_source
from explorer.sources.base import first_line
from explorer.sources.coded import SETTINGS

FOLDER = '"this folder"'
"""The folder in the code on a card."""
VLLM = "vllm"
ASSIGNED, TOLD = "model = ", "model, told = "
"""Assignment of the network in the code, and the same with the report of missing and unexpected tensors."""
PACKAGES = {"compressed-tensors": "compressed_tensors", "bitsandbytes": "bitsandbytes", "gguf": "gguf"}
"""The targets that transformers opens, and the packages that it needs for them."""
LARGEST = {torch.float32: 1e-2, torch.float16: 2e-2, torch.bfloat16: 2e-2}
"""Dtype of the reader -> largest accepted difference of a layer's outputs, relative to the largest output.
bitsandbytes' product on a CPU rounds by 0.4 %."""


@dataclass(frozen=True)
class Forward:
    """One forward pass of a checkpoint in its reader, compared with the network of the same rounded weights.

    tokens      the number of tokens
    what        the outputs: "logits" or "hidden states"
    difference  ‖difference‖ / ‖outputs of the network‖
    why         the reason why they were not compared, or empty
    """

    tokens: int
    what: str
    difference: float
    why: str = ""

    def __str__(self) -> str:
        if self.why:
            return f"Its outputs were not compared: {self.why}."
        return (
            f"Run on {self.tokens} tokens, its {self.what} differ by {self.difference:.1e} (relative, in the "
            "Euclidean norm) from those of a network of the same rounded weights."
        )


@dataclass(frozen=True)
class Verified:
    """The result of opening a checkpoint.

    reader      the program and its version
    layers      the number of layers of codes whose outputs were compared
    difference  the largest difference of them, relative to the largest output of the layer
    tensors     the number of other tensors, each equal to the original
    unseen      the number of layers of experts, which were opened but not compared
    kernels     the kernels of a reader in another process, in words
    inputs      True if the layers' inputs were quantized
    changed     how many of ``tensors`` methods changed (factors, biases) before they were compared
    forward     the outputs for a few tokens, compared with those of the network of the same weights
    """

    reader: str
    layers: int
    difference: float
    tensors: int
    unseen: int = 0
    kernels: str = ""
    inputs: bool = False
    changed: int = 0
    forward: Forward | None = None

    def __str__(self) -> str:
        experts = f"; {self.unseen} layers of experts were opened and not compared" if self.unseen else ""
        folded = f", {self.changed} of them as the methods changed them" if self.changed else ""
        others = f", and the other {self.tensors} tensors are equal to the original{folded}"
        others = others if self.tensors else ""
        inputs = " and inputs" if self.inputs else ""
        by = f" ({self.kernels})" if self.kernels else " with the code below"
        if not self.layers:
            return f"Opened by {self.reader}{by}: no layer holds codes{others}{experts}."
        return (
            f"Opened by {self.reader}{by}: the outputs of all {self.layers} layers of codes "
            f"are those of the rounded weights{inputs} within {self.difference:.1e} of the largest{others}"
            f"{experts}.{f' {self.forward}' if self.forward else ''}"
        )


FEW = 8
"""Number of tokens that a checkpoint is run on."""
MOST_APART, MOST_APART_INPUTS = 0.01, 0.5
"""Largest accepted difference of a checkpoint's outputs: with restored weights and the same operations, and
for a reader with products of its own (quantized inputs, a cache), whose errors grow from layer to layer."""
BITSANDBYTES = "bitsandbytes"


def probe(layer: str, columns: int) -> Tensor:
    """Input for which a layer's outputs are compared: float32 [columns]. Its numbers are exact in bfloat16,
    so that a reader in 16 bits has the same."""
    generator = torch.Generator().manual_seed(zlib.crc32(layer.encode()))
    return torch.randn(columns, generator=generator).bfloat16().float()


def seen_probe(export: Export, plan: Plan, layer: str, columns: int) -> Tensor:
    """Return ``probe``, float32 [columns], quantized by the reader's rule if the plan quantizes the layer's
    inputs."""
    x = probe(layer, columns)
    if layer not in plan.input_schemes:
        return x
    seen = export.as_read(plan.input_schemes[layer], plan.model.dtype)
    return quantized_inputs(x, seen, plan.input_scales.get(layer))


def obstacle(export: Export, plan: Plan) -> str:
    """Reason why the folder of a plan cannot be verified here; empty if it can."""
    if FOLDER not in export.load(plan):
        return "it is not opened here"
    if export.name == VLLM:
        return "" if vllm_reader.interpreter() else f"{vllm_reader.VARIABLE} names no Python with vLLM"
    if export.name not in PACKAGES:
        return "transformers does not open it here"
    if find_spec(PACKAGES[export.name]) is None:
        return f"its reader needs {PACKAGES[export.name]}"
    # What the reader opened, the network beside it, and the weights that this is made of.
    needed = sum(info.elements for info in plan.model.infos) * 4 * 3
    return "" if needed < 0.9 * memory_bytes() else "the network does not fit into memory for it"


def verify(
    export: Export,
    plan: Plan,
    folder: Path,
    codes: Mapping[str, QuantizedTensor],
    opened: Callable[[nn.Module], None] | None = None,
) -> Verified:
    """Open ``folder`` by the code on its card, compare it, and run it. ``codes``: the written codes of all
    layers, casts included. ``opened`` is called with the reader's network after the comparison, unless the
    reader is another process.

    ``ValueError`` that names the missing package, the reader's error, or the first difference.
    """
    outputs = {
        name: q.dequantize() @ seen_probe(export, plan, name, q.shape[1])
        for name, q in codes.items()
        if name in plan.coded
    }
    if export.name == VLLM:
        return _verify_by_vllm(export, plan, folder, outputs)
    network = _opened(export, plan, folder)

    def difference(name: str, expected: Tensor) -> float:
        path = export.place(plan.model, name, plan.layers[name].scheme).module
        return _difference(network.get_submodule(path), name, expected, name in plan.input_schemes)

    same = _compare_plain(export, plan, network)  # before a product, which has bitsandbytes repack weights
    with torch.no_grad():
        found = _compared(export, plan, outputs, LARGEST[_dtype(network)], difference)
    forward = run_once(export, plan, network, codes)
    if opened is not None:
        opened(network)
    reader = f"transformers {metadata.version('transformers')}"
    return replace(found, reader=reader, tensors=same, forward=forward)


def _compared(
    export: Export,
    plan: Plan,
    outputs: Mapping[str, Tensor],
    accepted: float,
    difference: Callable[[str, Tensor], float],
) -> Verified:
    """Compare the layers of codes; ``ValueError`` for the first that differs by more than ``accepted``.
    Experts, which readers join, are opened and not compared."""
    experts, largest = set(plan.model.experts), 0.0
    compared = {name: expected for name, expected in outputs.items() if name not in experts}
    for name, expected in compared.items():
        checkpoint()
        found = difference(name, expected)
        if not found <= accepted:
            raise ValueError(
                f"{export.label}: {name} computes something else after loading: its outputs differ "
                f"by {found:.2g} of the largest"
            )
        largest = max(largest, found)
    return Verified(
        "",
        len(compared),
        largest,
        0,
        len(outputs) - len(compared),
        inputs=bool(plan.input_schemes),
        changed=sum(name.removesuffix(".weight") not in plan.layers for name in plan.model.changed),
    )


def run_once(export: Export, plan: Plan, network: nn.Module, codes: Mapping[str, QuantizedTensor]) -> Forward:
    """Run the opened ``network`` on a few tokens, and compare it with a network of the original's class that
    has the weights of ``codes``. ``ValueError`` if only the opened network fails, or if the outputs differ by
    more than ``MOST_APART``."""
    config = plan.model.settings
    if not hasattr(getattr(config, "get_text_config", lambda: None)(), "vocab_size"):
        return Forward(0, "", math.nan, "it reads no tokens")
    tokens = _tokens(config)
    try:
        expected, what = _outputs(_described(export, plan, network, codes), tokens)
    except Exception as error:  # the original may not run here for any reason
        return Forward(len(tokens), "", math.nan, f"the original does not run here ({first_line(error)})")
    try:
        got, _ = _outputs(network, tokens)
    except Exception as error:
        raise ValueError(
            f"{export.label}: its reader opens it and cannot run it, while the original runs: "
            f"{first_line(error)}"
        ) from error
    apart = float((got - expected).norm() / expected.norm().clamp_min(1e-30))
    of_inputs = bool(plan.input_schemes or plan.cache) or export.name == BITSANDBYTES
    if not apart <= (MOST_APART_INPUTS if of_inputs else MOST_APART):
        raise ValueError(
            f"{export.label}: as its reader runs it, its {what} differ by {apart:.2g} of their norm from "
            "those of a network of the same weights"
        )
    return Forward(len(tokens), what, apart)


def _described(
    export: Export, plan: Plan, network: nn.Module, codes: Mapping[str, QuantizedTensor]
) -> nn.Module:
    """Build the network that the plan describes, in the class and dtype of ``network``."""
    weights = {info.name: plan.model.read(info.name) for info in plan.model.infos}
    weights |= {f"{name}.weight": q.dequantize().to(_dtype(network)) for name, q in codes.items()}
    config: Any = copy.deepcopy(plan.model.settings)
    if hasattr(config, SETTINGS):
        del config.quantization_config
    described: nn.Module = type(network).from_pretrained(  # type: ignore[attr-defined]
        None, config=config, state_dict=weights, dtype=_dtype(network)
    )
    for name, scheme in plan.input_schemes.items():
        seen = export.as_read(scheme, plan.model.dtype)
        module = described.get_submodule(plan.model.place(name).module)
        scale = plan.input_scales.get(name)
        module.register_forward_pre_hook(
            lambda _, x, seen=seen, scale=scale: (quantized_inputs(x[0], seen, scale).to(x[0].dtype), *x[1:])
        )
    return described.eval()


def _outputs(network: nn.Module, tokens: Tensor) -> tuple[Tensor, str]:
    """Compute the outputs for ``tokens`` in float64, and their name."""
    asked = {"input_ids": tokens[None]}
    if getattr(getattr(network, "config", None), "is_encoder_decoder", False):
        asked["decoder_input_ids"] = tokens[None]
    with torch.no_grad():
        found = network(**asked)
    logits = getattr(found, "logits", None)
    return (found[0] if logits is None else logits).double(), "hidden states" if logits is None else "logits"


def _tokens(config: Any) -> Tensor:
    """Choose a few tokens of text, none of them special."""
    settings = [config.to_dict(), config.get_text_config().to_dict()]
    named = [v for one in settings for key, v in one.items() if key.endswith(("token_id", "token_index"))]
    special = {token for value in named for token in (value if isinstance(value, list) else [value])}
    size = int(config.get_text_config().vocab_size)
    plain = [token for token in range(min(size, 1000)) if token not in special]
    return torch.tensor(plain[:: max(len(plain) // FEW, 1)][:FEW])


def _verify_by_vllm(export: Export, plan: Plan, folder: Path, outputs: Mapping[str, Tensor]) -> Verified:
    """Verify by vLLM, in the dtype of the model, or in bfloat16 for a model in float32."""
    dtype = torch.bfloat16 if plan.model.dtype is torch.float32 else plan.model.dtype
    experts = set(plan.model.experts)
    probes = {name: probe(name, plan.shape(name)[1]) for name in outputs if name not in experts}
    (read,) = vllm_reader.read_by_vllm([folder], probes, dtype)
    if not read.opened:
        raise ValueError(f"{export.label} {read.version} cannot open it: {read.why}")
    found = _compared(
        export, plan, outputs, LARGEST[dtype], lambda name, expected: _apart(read.outputs[name], expected)
    )
    kernels = f"kernel: {', '.join(dict.fromkeys(read.kernels.values()))}"
    same = _compare_files(export, plan, folder)
    return replace(found, reader=f"vLLM {read.version}", tensors=same, kernels=kernels)


def _compare_files(export: Export, plan: Plan, folder: Path) -> int:
    """Compare the tensors without codes in ``folder``; returns their number. ``ValueError`` for the first
    that is missing or differs."""
    written = open_source(str(folder))
    there = {info.name for info in written.infos}
    kept = [info.name for info in plan.model.infos if info.name.removesuffix(".weight") not in plan.layers]
    for name in kept:
        if name not in there:
            raise ValueError(f"{export.label}: {name} is not in the files that were written")
        if not torch.equal(written.read(name), plan.model.read(name)):
            raise ValueError(f"{export.label}: {name} differs from the original in the files")
    return len(kept)


def _apart(got: Tensor, expected: Tensor) -> float:
    """Largest difference, relative to the largest of ``expected``."""
    return float((got - expected).abs().max() / expected.abs().max().clamp_min(1e-30))


def _opened(export: Export, plan: Plan, folder: Path) -> nn.Module:
    """Run the code on the card, which is the project's own text, and return the network that it makes."""
    code = export.load(plan)
    if FOLDER not in code:
        raise ValueError(f"{export.label}: this folder is not opened here")
    code = code.replace(FOLDER, repr(str(folder)))
    if ASSIGNED in code and code.endswith(")"):
        code = f"{code.removesuffix(')').replace(ASSIGNED, TOLD)}, output_loading_info=True)"
    names: dict[str, Any] = {}
    try:
        exec(compile(code, "card", "exec"), names)
    except ImportError as error:
        raise ValueError(f"{export.label}: verifying needs a package: {first_line(error)}") from error
    except Exception as error:  # a reader fails in any way
        raise ValueError(f"{export.label}: its reader cannot open it: {first_line(error)}") from error
    network = names.get("model")
    if not isinstance(network, nn.Module):
        raise ValueError(f"{export.label}: its reader gives no network to compare, so it was not verified")
    for what in ("missing_keys", "unexpected_keys", "mismatched_keys"):
        if found := sorted(map(str, names.get("told", {}).get(what, ()))):
            raise ValueError(
                f"{export.label}: its reader finds {len(found)} {what.replace('_', ' ')}, such as {found[0]}"
            )
    for hook in list(network._forward_pre_hooks.values()):  # readers restore codes when a network first runs
        hook(network, ())
    return network.eval()


def _difference(module: nn.Module, name: str, expected: Tensor, of_inputs: bool) -> float:
    """Largest difference of the outputs, relative to the largest: by the weight that the reader restored, or,
    if it keeps codes or rounds inputs (``of_inputs``), by its own product without the bias."""
    columns = getattr(module, "in_features", getattr(module, "embedding_dim", len(expected)))
    inputs, weight = probe(name, columns), getattr(module, "weight", None)
    if (
        not of_inputs
        and isinstance(weight, Tensor)
        and weight.dtype in LARGEST
        and weight.shape == (len(expected), len(inputs))
    ):
        got = weight.float() @ inputs
    else:
        got, bias = module(inputs.to(_dtype(module))[None])[0].float(), getattr(module, "bias", None)
        got = got if bias is None else got - bias.float()
    return _apart(got, expected)


def _compare_plain(export: Export, plan: Plan, network: nn.Module) -> int:
    """Compare the tensors without codes in the network; returns their number. ``ValueError`` for the first
    that differs."""
    skeleton, found = plan.model.skeleton, network.state_dict()
    compared = 0
    for info in plan.model.infos:
        layer = info.name.removesuffix(".weight")
        if skeleton is None or layer in plan.layers or (plan.model.tied and plan.model.is_head(layer)):
            continue  # of a tied head readers have the embeddings
        for name, of in plan.model.taken_apart(info.name).items():
            if name not in found or not torch.equal(found[name], of(plan.model.read(info.name))):
                raise ValueError(f"{export.label}: {name} is not the part of {info.name} that it should be")
        parameter, changed = skeleton.parameter(info.name)
        if plan.model.taken_apart(info.name) or changed or not skeleton.holds(parameter):
            continue
        if parameter not in found:
            raise ValueError(f"{export.label}: {info.name} is not in the network that its reader opened")
        original = plan.model.read(info.name)
        if not torch.equal(found[parameter], original.to(found[parameter].dtype)):
            raise ValueError(f"{export.label}: {info.name} differs from the original after loading")
        compared += 1
    return compared


def _dtype(module: nn.Module) -> torch.dtype:
    """The dtype of the first floating-point parameter or buffer, preferably ``weight``."""
    weight = [own] if isinstance(own := getattr(module, "weight", None), Tensor) else []
    floats = (p.dtype for p in (*weight, *module.parameters(), *module.buffers()) if p.dtype in LARGEST)
    return next(floats, torch.float32)
