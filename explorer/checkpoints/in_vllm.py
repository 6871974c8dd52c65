"""A program for a Python with vLLM: it opens checkpoints and returns the outputs of their layers.

vLLM pins other versions of torch and transformers than this package, so that it runs in a process of its own,
and nothing of this package is imported here. Each line of standard input is a job in JSON::

    folder   the checkpoint                        dtype   of the model, "auto" for the checkpoint's own
    inputs   a safetensors file: layer -> its input [K]; "ids" -> the tokens of a text, if any
    outputs  the safetensors file to write: layer -> its output [N]; "logits" -> the text's [tokens - 1, V]

A line of standard output that begins with ``ANSWER`` is the answer: ``opened``, or the reason ``why`` not,
the kernel of each kind of scheme, and ``version``. If vLLM has no kernel for this machine, a plain product
with the restored weight takes its place, and is called "reference"; vLLM still opens and merges the weights.
"""

from __future__ import annotations

import gc
import json
import os
import sys
from collections.abc import Callable, Iterator
from importlib import metadata
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

ANSWER = "ANSWER "
_SETTINGS = {
    "VLLM_LOGGING_LEVEL": "ERROR",
    "VLLM_ENABLE_V1_MULTIPROCESSING": "0",
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_NO_USAGE_STATS": "1",
    "HF_HUB_OFFLINE": "1",
}
_WORD = 32
_E2M1 = torch.tensor([0, 0.5, 1, 1.5, 2, 3, 4, 6, 0, -0.5, -1, -1.5, -2, -3, -4, -6])
_FACTORIES = {
    "compressed_tensors_wNa16": "choose_mp_linear_kernel",
    "compressed_tensors_w8a16_fp8": "init_wfp8_a16_linear_kernel",
    "compressed_tensors_w8a8_fp8": "init_fp8_linear_kernel",
    "compressed_tensors_w8a8_mxfp8": "init_mxfp8_linear_kernel",
    "compressed_tensors_w4a4_mxfp4": "init_mxfp4_linear_kernel",
    "compressed_tensors_w4a4_nvfp4": "init_nvfp4_linear_kernel",
}
"""Module of a scheme in vLLM 0.32 -> the function that gives it a kernel."""


class ReferenceKernel:
    """Stand-in for a kernel: multiplies by the weight that the loaded tensors restore."""

    bits, group_size, zero_points = 0, -1, False

    def __init__(self, *given: Any, **named: Any) -> None:
        self.inputs = named.get("activation_quant_key") if "module_name" in named else None
        self.config = given[0] if given else type("Config", (), {})()
        kind = getattr(self.config, "weight_type", None)
        if kind is not None:
            self.bits = kind.size_bits
            self.group_size, self.zero_points = self.config.group_size, self.config.zero_points

    def input_quant_key(self) -> None:
        """None: no layer before it rounds its outputs."""

    def process_weights_after_loading(self, layer: Any) -> None:
        """Restore the weight [N, K] in the dtype of the model."""
        layer.restored = self._restored(layer)

    def apply_weights(self, layer: Any, x: Tensor, bias: Tensor | None = None) -> Tensor:
        """Compute the outputs [tokens, N] for ``x`` [tokens, K]."""
        if self.inputs is not None:
            x = self._rounded(x.float(), getattr(layer, "input_scale", None)).to(x.dtype)
        return torch.nn.functional.linear(x.float(), layer.restored, bias).to(x.dtype)

    def _rounded(self, x: Tensor, scale: Tensor | None) -> Tensor:
        """Round ``x`` to FP8 E4M3, by a fixed scale or one for each 128 values of a token."""
        largest = torch.finfo(torch.float8_e4m3fn).max
        if scale is not None:
            return (x / scale).clamp(-largest, largest).to(torch.float8_e4m3fn).float() * scale
        blocks = x.unflatten(-1, (-1, 128))
        each = blocks.abs().amax(-1, keepdim=True).clamp_min(1e-12) / largest
        return ((blocks / each).to(torch.float8_e4m3fn).float() * each).flatten(-2)

    def _restored(self, layer: Any) -> Tensor:
        if hasattr(layer, "weight_packed"):
            return self._of_words(layer)
        codes, scale = layer.weight.data, getattr(layer, "weight_scale", None)
        if codes.dtype is torch.uint8:
            values = torch.stack([_E2M1[(codes & 15).long()], _E2M1[(codes >> 4).long()]], -1).flatten(1)
            if hasattr(layer, "weight_global_scale"):
                return values * _spread(layer.weight_scale.float() * layer.weight_global_scale, 16)
            return values * _spread(_power(layer.weight_scale), 32)
        if scale is None or getattr(layer, "weight_block_size", None) is not None:
            return _of_tiles(codes, layer.weight_scale_inv.data if scale is None else scale)
        if scale.dtype is torch.uint8:
            return codes.float() * _spread(_power(scale), 32)
        if scale.dim() == 2 and scale.shape[1] > 1:
            return _of_tiles(codes, scale)
        return codes.float().t() * scale.reshape(-1, 1)

    def _of_words(self, layer: Any) -> Tensor:
        packed, scale = layer.weight_packed.data, layer.weight_scale.data.float()
        columns = layer.input_size_per_partition
        codes = _codes(packed, self.bits)[:, :columns].float()
        each = columns // scale.shape[1]
        if not self.zero_points:
            return (codes - 2 ** (self.bits - 1)) * _spread(scale, each)
        zeros = _codes(layer.weight_zero_point.data.t(), self.bits)[:, : len(codes)].t().float()
        return (codes - _spread(zeros, each)) * _spread(scale, each)


def _of_tiles(codes: Tensor, tiles: Tensor) -> Tensor:
    spread = _spread(tiles, 128).repeat_interleave(128, 0)
    return codes.float() * spread[: codes.shape[0], : codes.shape[1]]


def _spread(scale: Tensor, width: int) -> Tensor:
    return scale.float().repeat_interleave(width, 1)


def _power(exponents: Tensor) -> Tensor:
    return torch.exp2(exponents.float() - 127)


def _codes(words: Tensor, bits: int) -> Tensor:
    """Unpack int32 [rows, words] to int64 [rows, codes], the first code from the lowest bits."""
    each = ((words.long() & 0xFFFFFFFF)[:, :, None] >> torch.arange(_WORD)) & 1
    stream = each.flatten(1)
    stream = stream[:, : stream.shape[1] // bits * bits].unflatten(1, (-1, bits))
    return (stream << torch.arange(bits)).sum(2)


def use_references() -> None:
    """Give the reference to every scheme without a kernel for this machine."""
    from importlib import import_module

    package = "vllm.model_executor.layers.quantization.compressed_tensors.schemes"
    for module, name in _FACTORIES.items():
        found = import_module(f"{package}.{module}")
        setattr(found, name, _or_reference(getattr(found, name), name.startswith("choose")))
    operations = import_module("vllm._custom_ops")
    operations.scaled_fp8_quant = _plain_fp8  # type: ignore[attr-defined]


def _plain_fp8(x: Tensor, scale: Tensor | None = None, *given: Any, **named: Any) -> tuple[Tensor, Tensor]:
    """Round ``x`` to FP8 E4M3 by ``scale``, which vLLM itself computes on GPUs only. It rounds joined weights
    with several scales to the largest."""
    largest = torch.finfo(torch.float8_e4m3fn).max
    scale = x.abs().amax().float() / largest if scale is None else scale
    return (x.float() / scale).clamp(-largest, largest).to(torch.float8_e4m3fn), scale


def _or_reference(own: Callable[..., Any], gives_class: bool) -> Callable[..., Any]:
    def kernel(*given: Any, **named: Any) -> Any:
        inputs = named.get("activation_quant_key")
        if inputs is not None and "module_name" in named and inputs.scale.static:
            return ReferenceKernel(**named)  # the kernel that vLLM finds on a CPU fails when it runs
        try:
            return own(*given, **named)
        except (ValueError, AssertionError) as error:
            if "kernel" not in str(error).lower():
                raise
            return ReferenceKernel if gives_class else ReferenceKernel(**named)

    return kernel


def run(job: dict[str, Any]) -> dict[str, Any]:
    """Open the folder of ``job``, run its layers and its text, and write the outputs."""
    from vllm import LLM, SamplingParams
    from vllm.inputs import TokensPrompt

    given = load_file(job["inputs"])
    ids = given.pop("ids", torch.zeros(0)).long().tolist()
    llm = LLM(
        job["folder"],
        enforce_eager=True,
        max_model_len=max(len(ids) + 2, 16),
        max_num_seqs=2,
        dtype=job["dtype"],
        skip_tokenizer_init=True,
        disable_log_stats=True,
    )
    outputs: dict[str, Tensor] = {}
    kernels: dict[str, str] = {}
    logits: list[Tensor] = []

    def look(model: Any) -> None:
        with torch.no_grad():
            for name, out in _outputs(model, given):
                outputs[name] = out
        for module in model.modules():
            if (scheme := getattr(module, "scheme", None)) is not None:
                kernels[type(scheme).__name__] = _kernel_of(scheme)
        own = model.compute_logits

        def seen(*arguments: Any, **named: Any) -> Any:
            found = own(*arguments, **named)
            logits.append(found.float().clone())
            return found

        model.compute_logits = seen

    look(llm.llm_engine.model_executor.driver_worker.worker.get_model())
    if ids:
        asked = SamplingParams(max_tokens=1, temperature=0, prompt_logprobs=0, detokenize=False)
        llm.generate(TokensPrompt(prompt_token_ids=ids), asked, use_tqdm=False)
        outputs["logits"] = max(logits, key=len)[: len(ids)].contiguous()
    save_file(outputs, job["outputs"])
    return {"kernels": kernels}


def _kernel_of(scheme: Any) -> str:
    named = [getattr(scheme, name, None) for name in ("kernel", "linear_kernel", "fp8_linear")]
    kernel = next((one for one in named if one is not None), None)
    return "reference" if isinstance(kernel, ReferenceKernel) else type(kernel).__name__


def _outputs(model: Any, inputs: dict[str, Tensor]) -> Iterator[tuple[str, Tensor]]:
    """Yield each layer with an input, and its output float32 [N]: a part of the matrix that vLLM joined it
    to."""
    mapper = getattr(model, "hf_to_vllm_mapper", None)
    joined = {
        part: (whole, parts.index(part))
        for whole, parts in getattr(model, "packed_modules_mapping", {}).items()
        for part in parts
    }
    modules = dict(model.named_modules())
    norms = (p for p in model.parameters() if p.dtype.is_floating_point and p.dim() == 1)
    dtype = next(norms).dtype
    for name, x in inputs.items():
        path = name if mapper is None else mapper._map_name(f"{name}.weight").removesuffix(".weight")
        whole, part = joined.get(name.rpartition(".")[2], ("", None))
        if whole and path not in modules:
            path = f"{path.rpartition('.')[0]}.{whole}"
        if not path.endswith(whole):
            part = None
        module = modules[path]
        out = module.quant_method.apply(module, x[None].to(dtype), None)[0].float()
        if part is not None:
            sizes = getattr(module, "logical_widths", None) or module.output_partition_sizes
            out = out.split(list(sizes))[part]
        yield name, out.contiguous()


def main() -> None:
    """Answer each job of standard input."""
    os.environ.update(_SETTINGS)  # before vLLM is imported
    from vllm.distributed import cleanup_dist_env_and_memory

    use_references()
    for line in sys.stdin:
        job = json.loads(line)
        try:
            answer: dict[str, Any] = {"opened": True, **run(job)}
        except Exception as error:  # vLLM fails in any way
            answer = {"opened": False, "why": f"{type(error).__name__}: {error}"}
        answer["version"] = metadata.version(job.get("package", "vllm-cpu"))
        print(ANSWER + json.dumps(answer), flush=True)
        cleanup_dist_env_and_memory()
        gc.collect()


if __name__ == "__main__":
    main()
