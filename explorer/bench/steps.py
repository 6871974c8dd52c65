"""Timing of a model's steps: prefill and decoding of networks with the shapes of known models and random
weights, by scheme, compared with bfloat16 run the same way (compiled blocks, one CUDA graph, layers of one
input joined)."""

from __future__ import annotations

import gc
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from importlib.util import find_spec
from typing import Any

import torch
from torch import Tensor, nn

from explorer.bench.timing import event_seconds, measure_limits, spread, wall_seconds
from explorer.core.backend import require_gpu
from explorer.models.serve import quantize_model
from explorer.products.layer import QuantizedLinear
from explorer.recordings.steps import BASELINE, TORCHAO, StepParts, StepTiming
from explorer.recordings.times import TimeSpread
from explorer.running.attention import choose
from explorer.running.fused import fuse
from explorer.running.graphed import CompiledBlocks, GraphedNetwork
from explorer.schemes import Scheme

SHAPES: dict[str, dict[str, Any]] = {
    "Llama-3-8B": {
        "vocab_size": 128256, "hidden_size": 4096, "intermediate_size": 14336, "num_hidden_layers": 32,
        "num_attention_heads": 32, "num_key_value_heads": 8, "rope_theta": 500000.0,
    },
    "Llama-3.2-1B": {
        "vocab_size": 128256, "hidden_size": 2048, "intermediate_size": 8192, "num_hidden_layers": 16,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 64, "rope_theta": 500000.0,
        "tie_word_embeddings": True,
    },
    "Qwen3-4B": {
        "vocab_size": 151936, "hidden_size": 2560, "intermediate_size": 9728, "num_hidden_layers": 36,
        "num_attention_heads": 32, "num_key_value_heads": 8, "head_dim": 128, "rope_theta": 1000000.0,
        "tie_word_embeddings": True,
    },
}  # fmt: skip
"""Configurations as the models' own files have them (config.json on the Hub); Qwen3-4B's norms of queries and
keys are left out."""
BATCHES, CONTEXT, SPARE = (1, 8, 16, 32, 64), 512, 256
DEFAULT = ("int4_group128", "nvfp4", "int8_row", "fp8_e4m3_row", "fp8_e4m3_row+fp8_e4m3_row")
"""Schemes of weights; a plus sign precedes a scheme of inputs."""
REPEATS, IN_A_ROW = 9, 16
"""Number of timed runs, and of consecutive steps in each, as when a text is written."""
_LINEAR = ("gemm", "nvjet", "cutlass", "splitkreduce", "unpack", "quantize", "ranges", "encode", "settle")
_ATTENTION = ("attend", "flex_attention", "sdpa", "flash", "fmha", "attention", "lean_reduction")


@dataclass(frozen=True)
class _Base:
    """Times of the bfloat16 model by batch."""

    step_s: dict[int, float]
    prefill_s: dict[int, float]
    weight_bytes: int


def time_steps(
    shape: str,
    schemes: Sequence[str] = DEFAULT,
    batches: Sequence[int] = BATCHES,
    head: Scheme | None = None,
) -> Iterator[StepTiming]:
    """Time each scheme at each batch size, bfloat16 first; a generator, so that it can be stopped. ``head``:
    scheme of the output head of the quantized models. ``ValueError`` without a GPU or for an unknown shape.
    """
    device = require_gpu()
    if shape not in SHAPES:
        raise ValueError(f"no shape {shape!r}; there are {', '.join(SHAPES)}")
    copy, base = measure_limits(device).copy, None
    for text in (BASELINE, *schemes):
        network = random_network(SHAPES[shape], device)
        weights, _, inputs = text.partition("+")
        if text != BASELINE:
            if text == TORCHAO:
                fuse(network)  # torchao's tensors cannot be joined
                quantize_by_torchao(network)
            else:
                quantize_model(network, Scheme.parse(weights), Scheme.parse(inputs) if inputs else None)
            if head is not None:
                network.lm_head = QuantizedLinear.of(network.lm_head, head)
        fuse(network)
        choose(network)
        _collect()
        timed, compiled = [], CompiledBlocks(network)
        for batch in batches:
            timed.append((batch, *_measured(network, batch, compiled)))
        held, read = bytes_of(network), read_bytes(network)
        if base is None:
            base = _Base(
                {batch: step.median_s for batch, step, *_ in timed},
                {batch: prefill.median_s for batch, _, _, prefill in timed},
                held,
            )
        for batch, step, parts, prefill in timed:
            every = read + cache_bytes(SHAPES[shape], batch, CONTEXT)
            yield StepTiming(
                shape=shape,
                scheme=weights,
                inputs=inputs,
                head="" if head is None or text == BASELINE else str(head),
                batch=batch,
                context=CONTEXT,
                room=CONTEXT + SPARE,
                step=step,
                parts=parts,
                prefill=prefill,
                weight_bytes=held,
                read_bytes=every,
                floor_s=every / copy,
                baseline_s=base.step_s[batch],
                baseline_prefill_s=base.prefill_s[batch],
                baseline_weight_bytes=base.weight_bytes,
            )
        del network, compiled
        torch._dynamo.reset()
        _collect()


def quantize_by_torchao(network: Any) -> None:
    """Quantize all linear layers but the head by torchao, in place. ``ValueError`` without torchao."""
    try:
        from torchao.quantization import Int4WeightOnlyConfig, quantize_
    except ImportError as error:
        raise ValueError("torchao is not installed: pip install torchao") from error
    config = Int4WeightOnlyConfig(
        group_size=128, set_inductor_config=False, int4_packing_format="tile_packed_to_4d"
    )

    def is_left(module: nn.Module, _: str) -> bool:
        """Layers of one input are found by each of their names."""
        plain = type(module) is nn.Linear and type(module.weight) is nn.Parameter
        return plain and module is not network.lm_head

    quantize_(network, config, is_left)


def schemes_here() -> list[str]:
    """Return the default schemes, with torchao's if it is installed."""
    return [*DEFAULT, *([TORCHAO] if find_spec("torchao") else [])]


def random_network(sizes: dict[str, Any], device: torch.device) -> Any:
    """Make a Llama of these sizes in bfloat16, with seeded normal weights of deviation 0.02."""
    from transformers import LlamaConfig, LlamaForCausalLM

    config = LlamaConfig(max_position_embeddings=8192, **sizes)
    with torch.device("meta"):
        network = LlamaForCausalLM(config)
    network = network.to_empty(device=device).to(torch.bfloat16)
    network.model.rotary_emb = type(network.model.rotary_emb)(config).to(device)
    generator = torch.Generator(device=device).manual_seed(0)
    with torch.no_grad():
        for name, parameter in network.named_parameters():
            if "norm" in name:
                parameter.fill_(1.0)
            else:
                parameter.normal_(0, 0.02, generator=generator)
    network.tie_weights()
    return network.eval()


def _measured(
    network: nn.Module, batch: int, compiled: CompiledBlocks
) -> tuple[TimeSpread, StepParts, TimeSpread]:
    graphed = GraphedNetwork(network, CONTEXT + SPARE, batch, compiled)
    device = next(network.parameters()).device
    generator = torch.Generator().manual_seed(batch)
    ids = torch.randint(1000, (batch, CONTEXT), generator=generator).to(device)
    graphed.prefill(ids)
    prefill = wall_seconds(partial(graphed.prefill, ids), device, 3, warm_up=0)
    graphed.step(ids[:, :1])
    times = [_steps_in_a_row(graphed) for _ in range(REPEATS + 1)]
    step = spread(times[1:])
    parts = _parts(graphed, step.median_s)
    del graphed
    _collect()
    return step, parts, prefill


def _steps_in_a_row(graphed: GraphedNetwork) -> float:
    """Time consecutive steps: seconds of one step."""
    graphed.back_to(CONTEXT)

    def run() -> None:
        for _ in range(IN_A_ROW):
            graphed.replay()

    return event_seconds(run) / IN_A_ROW


def _parts(graphed: GraphedNetwork, step_s: float) -> StepParts:
    """Profile the kernels of one replay by their names. Kernels that are launched early overlap: each counts
    from the end of the one before it."""
    from torch.profiler import ProfilerActivity, profile

    graphed.back_to(CONTEXT)
    with profile(activities=[ProfilerActivity.CUDA]) as profiled:
        graphed.replay()
        torch.cuda.synchronize()
    kernels = [
        (event.time_range.end, event.time_range.start, event.name.lower())
        for event in profiled.events() or ()
        if event.device_type == torch.autograd.DeviceType.CUDA
    ]
    linear, attention, rest = parts_of(kernels)
    return StepParts(linear, attention, rest, max(0.0, step_s - linear - attention - rest))


def parts_of(kernels: Iterable[tuple[float, float, str]]) -> tuple[float, float, float]:
    """Sum the seconds of products, attention and the rest, from each kernel's end and start in µs, and its
    name."""
    linear = attention = rest = 0.0
    before = float("-inf")
    for end, start, name in sorted(kernels):
        seconds = max(0.0, end - max(start, before)) / 1e6
        before = end
        if any(word in name for word in _ATTENTION):
            attention += seconds
        elif any(word in name for word in _LINEAR):
            linear += seconds
        else:
            rest += seconds
    return linear, attention, rest


def bytes_of(network: nn.Module) -> int:
    """Count the bytes of all parameters and layouts of codes; shared ones count once."""
    tensors = {t.data_ptr(): t for whole in (*network.parameters(), *network.buffers()) for t in _held(whole)}
    return sum(t.numel() * t.element_size() for t in tensors.values())


def _held(tensor: Any) -> list[Tensor]:
    """Return the tensors inside a tensor of a subclass, such as torchao's."""
    if not hasattr(tensor, "__tensor_flatten__"):
        return [tensor]
    return [part for name in tensor.__tensor_flatten__()[0] for part in _held(getattr(tensor, name))]


def read_bytes(network: Any) -> int:
    """Count the bytes of weights that a step reads: all but the embeddings of other tokens."""
    embedding = network.get_input_embeddings().weight
    tied = embedding.data_ptr() == getattr(network.lm_head, "weight", embedding).data_ptr()
    spared = 0 if tied and not isinstance(network.lm_head, QuantizedLinear) else embedding.numel() * 2
    return bytes_of(network) - spared


def cache_bytes(sizes: dict[str, Any], batch: int, tokens: int) -> int:
    """Count the bytes of keys and values in bfloat16, for so many tokens a text."""
    head = sizes.get("head_dim", sizes["hidden_size"] // sizes["num_attention_heads"])
    return 2 * 2 * sizes["num_hidden_layers"] * sizes["num_key_value_heads"] * head * batch * tokens


def _collect() -> None:
    gc.collect()
    torch.cuda.empty_cache()


def products_of(shape: str) -> dict[str, tuple[int, int]]:
    """N and K of a block's products, by label: each layer, and layers of one input multiplied as one."""
    sizes = SHAPES[shape]
    hidden, between = sizes["hidden_size"], sizes["intermediate_size"]
    head = sizes.get("head_dim", hidden // sizes["num_attention_heads"])
    query, key = head * sizes["num_attention_heads"], head * sizes["num_key_value_heads"]
    return {
        "query": (query, hidden),
        "key": (key, hidden),
        "query, key and value": (query + 2 * key, hidden),
        "attention's output": (hidden, query),
        "gate": (between, hidden),
        "gate and up": (2 * between, hidden),
        "down": (hidden, between),
    }
