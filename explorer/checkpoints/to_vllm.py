"""vLLM: the layout of compressed-tensors, by the rules of vLLM's loader and kernels.

They are narrower than those of the layout (vLLM 0.32, ``quantization/compressed_tensors`` and
``kernels/linear``)::

    INT4, INT4 with zero points, INT8  weights alone, by row or in groups of 32, 64 or 128; INT8 by row as
                                       packed words, because int-quantized asserts that inputs are quantized
    FP8 E4M3                           by tensor or row; tiles of 128 x 128 only with quantized inputs: its
                                       loader compares None with False there
    NVFP4, MXFP4, MXFP8                weights alone
    INT8 x INT8, FP8 x FP8             with quantized inputs, by row or tensor

Query, key and value are one matrix there, and so are gate and up: their parts need one scheme. Scales are
cast to the model's dtype.
"""

from __future__ import annotations

from functools import partial

import torch

from explorer.checkpoints import cache_scales, safetensors_folder
from explorer.checkpoints import to_compressed_tensors as layouts
from explorer.checkpoints.inputs import product_refusal
from explorer.checkpoints.integer_words import is_asymmetric
from explorer.checkpoints.target import Export, ExportJob, Plan, Shape
from explorer.checkpoints.to_compressed_tensors import CompressedLayout
from explorer.formats import IntegerFormat
from explorer.methods import label_of
from explorer.models.kinds import fused_groups, has_one_scale
from explorer.schemes import Scheme

NAME = "vllm"
VERSION = "0.32.0"
GROUPS = (None, 32, 64, 128)
KERNELS = {4: (True, False), 8: (True,)}
"""Bits of an integer -> the codes that Marlin's kernels on GPUs take: True for symmetric, False for
asymmetric."""


def loaded_layout(scheme: Scheme, inputs: bool = False) -> CompressedLayout | None:
    """The format that vLLM loads codes of ``scheme`` from, with or without quantized inputs; None if there is
    none."""
    found = layouts.compressed_layout(scheme)
    if found is None or found.format == "mxfp6-pack-quantized":
        return None
    if inputs:
        return found if found.format in ("int-quantized", "float-quantized") else None
    if not isinstance(scheme.format, IntegerFormat):
        return None if found.weights["strategy"] == "block" else found
    if scheme.block[0] is None or scheme.block[1] not in GROUPS:
        return None
    if (not is_asymmetric(scheme)) not in KERNELS.get(scheme.format.bits, ()):
        return None
    return layouts.packed_layout(scheme)


def _any_layout(scheme: Scheme) -> CompressedLayout | None:
    return loaded_layout(scheme) or loaded_layout(scheme, inputs=True)


def refuses(scheme: Scheme, shape: Shape) -> str:
    """Reason why vLLM does not load a layer [N, K] by ``scheme``, or an empty text."""
    if why := layouts.refuses(scheme, shape):
        return why
    if _any_layout(scheme) is None:
        return (
            "its kernels take INT4 and symmetric INT8 by row or in groups of 32, 64 or 128, FP8 E4M3, NVFP4, "
            f"MXFP4 and MXFP8, not {scheme.label}"
        )
    return ""


def multiplies(inputs: Scheme, scheme: Scheme) -> str:
    """Reason why vLLM has no product of ``inputs`` with weights by ``scheme``, or an empty text. NVFP4 inputs
    and W4A8, which its sources have for some GPUs, were not tried."""
    if why := product_refusal(inputs, scheme):
        return why
    if loaded_layout(scheme, inputs=True) is None:
        return f"its products of {scheme.label} with inputs by {inputs.label} were not tried here"
    return ""


def together(plan: Plan) -> str:
    """Reason why these layers, or these inputs, cannot be combined, or an empty text."""
    if why := layouts.experts_refusal(plan) or layouts.inputs_refusal(plan):
        return why
    for (scheme, inputs), names in plan.groups.items():
        if loaded_layout(scheme, inputs is not None) is None:
            what = "unless inputs are quantized too" if inputs is None else "with quantized inputs"
            return f"it does not load {names[0]} by {scheme.label} {what}"
        if inputs is not None and (why := multiplies(inputs, scheme)):
            return why
    return _fused_refusal(plan)


def _fused_refusal(plan: Plan) -> str:
    """Reason why matrices that vLLM joins cannot be joined; empty if they can."""
    linear = plan.model.skeleton.linear if plan.model.skeleton else ()
    here = {plan.model.place(name).module: name for name in plan.model.matrices}
    names = [name for module, name in here.items() if not linear or module in linear]
    for group in fused_groups(names):
        by_method = [name for name in group if name in plan.coded and plan.coded[name].method]
        if len(group) > 1 and any(has_one_scale(plan.coded[name].scheme) for name in by_method):
            return (
                f"it keeps one tensor scale of the parts of a matrix, and {by_method[0]} has its own by "
                f"{label_of(plan.coded[by_method[0]].method)}: take a scheme without one"
            )
        schemes = {plan.coded[name].scheme.text if name in plan.coded else "" for name in group}
        inputs = {plan.input_schemes.get(name) for name in group}
        if len(schemes) > 1 or len(inputs) > 1:
            first, *more = sorted(group)
            parts = [first, *(name.rpartition(".")[2] for name in more)]
            joined = f"{', '.join(parts[:-1])} and {parts[-1]}"
            what = "one scheme" if len(schemes) > 1 else "one way of quantizing inputs"
            return f"it multiplies {joined} as one matrix: they need {what} (recipe --for vllm)"
    return ""


def stored_bits(scheme: Scheme, shape: Shape, dtype: torch.dtype) -> float:
    """Bits per weight of a layer [N, K] of a model in ``dtype`` whose inputs are not quantized."""
    return layouts.bits_of(_any_layout(scheme), scheme, shape, dtype)


def write(job: ExportJob) -> None:
    """Write all tensors of the model and its changed configuration."""

    def own(name: str) -> safetensors_folder.Layer:
        return partial(layouts.layer, layout=partial(loaded_layout, inputs=name in job.plan.input_schemes))

    layouts.write(job, partial(layouts.settings, layout=loaded_layout), own)


def load(plan: Plan) -> str:
    """Return the code that opens the folder."""
    return 'from vllm import LLM  # pip install vllm\n\nmodel = LLM("this folder")'


EXPORT = Export(
    NAME,
    "vLLM",
    "compressed-tensors with only what vLLM loads and has kernels for",
    f"vLLM {VERSION} on a CPU",
    "equal in the model's dtype, which scales have too",
    refuses,
    together,
    write,
    safetensors_folder.one(partial(layouts.layer, layout=_any_layout)),
    load,
    place=layouts.place,
    expert_refusal=layouts.expert_refusal,
    bits=stored_bits,
    fused=True,
    joined=True,
    reads_in=layouts.reads_in,
    stored=layouts.stored,
    usual=("int4_group128", "int4_group64", "int4_group32"),
    multiplies=multiplies,
    around=safetensors_folder.around,
    against_cache=cache_scales.refusal,
)
