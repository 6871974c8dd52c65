"""Folders of models that are published quantized, made of plain ones: FP8 in blocks, and MXFP4 experts."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor

FP8 = {"quant_method": "fp8", "fmt": "e4m3", "activation_scheme": "dynamic"}
MXFP4 = {"quant_method": "mxfp4", "modules_to_not_convert": ["model.layers.*.self_attn", "lm_head"]}
TILE = 128
PLAIN = ("embed_tokens", "lm_head", "mlp.gate.weight")
"""Parts of the names of matrices that such models keep in 16 bits."""


def fp8_parts(weight: Tensor, tile: int = TILE) -> tuple[Tensor, Tensor]:
    """F8_E4M3 codes [N, K] and float32 scales [⌈N/tile⌉, ⌈K/tile⌉] of a weight [N, K]."""
    rows, columns = (-(-n // tile) for n in weight.shape)
    scales = torch.empty(rows, columns)
    codes = torch.empty_like(weight, dtype=torch.float8_e4m3fn)
    for r in range(rows):
        for c in range(columns):
            part = (slice(r * tile, (r + 1) * tile), slice(c * tile, (c + 1) * tile))
            scales[r, c] = weight[part].float().abs().max().clamp_min(1e-6) / 448
            codes[part] = (weight[part].float() / scales[r, c]).to(torch.float8_e4m3fn)
    return codes, scales


def tiles(codes: Tensor, scales: Tensor, tile: int = TILE) -> Tensor:
    """float32 [N, K]: every code times the scale of its tile, an element at a time."""
    grown = scales.float().repeat_interleave(tile, 0).repeat_interleave(tile, 1)
    return codes.float() * grown[: codes.shape[0], : codes.shape[1]]


def mxfp4_parts(experts: int, rows: int, columns: int, seed: int = 0) -> tuple[Tensor, Tensor]:
    """Blocks U8 [E, rows, columns/32, 16] and scales U8 [E, rows, columns/32], drawn at random."""
    draw = torch.Generator().manual_seed(seed)
    blocks = torch.randint(0, 256, (experts, rows, columns // 32, 16), generator=draw, dtype=torch.uint8)
    scales = torch.randint(118, 124, blocks.shape[:-1], generator=draw, dtype=torch.uint8)
    return blocks, scales


def to_fp8(model: Path, out: Path, tile: int = TILE) -> Path:
    """The folder ``out``: ``model`` with its linear layers in FP8, by tiles."""
    tensors: dict[str, Tensor] = {}
    for name, tensor in _tensors(model).items():
        if tensor.dim() == 2 and not any(part in name for part in PLAIN):
            tensors[name], tensors[f"{name}_scale_inv"] = fp8_parts(tensor, tile)
        else:
            tensors[name] = tensor.bfloat16() if tensor.is_floating_point() else tensor
    return _written(model, out, tensors, FP8 | {"weight_block_size": [tile, tile]})


def to_mxfp4(model: Path, out: Path) -> Path:
    """The folder ``out``: ``model`` with its experts [E, inputs, outputs] in MXFP4."""
    tensors: dict[str, Tensor] = {}
    for seed, (name, tensor) in enumerate(_tensors(model).items()):
        if name.endswith(("experts.gate_up_proj", "experts.down_proj")):
            experts, inputs, outputs = tensor.shape
            tensors[f"{name}_blocks"], tensors[f"{name}_scales"] = mxfp4_parts(experts, outputs, inputs, seed)
        else:
            tensors[name] = tensor.bfloat16()
    return _written(model, out, tensors, MXFP4)


def _tensors(model: Path) -> dict[str, Tensor]:
    return {n: t for path in sorted(model.glob("*.safetensors")) for n, t in load_file(path).items()}


def _written(model: Path, out: Path, tensors: dict[str, Tensor], settings: Mapping[str, object]) -> Path:
    out.mkdir(parents=True)
    for path in model.glob("*.json"):
        if not path.name.endswith(".index.json"):
            (out / path.name).write_bytes(path.read_bytes())
    config = json.loads((model / "config.json").read_text())
    config |= {"dtype": "bfloat16", "quantization_config": settings}
    (out / "config.json").write_text(json.dumps(config))
    save_file(tensors, out / "model.safetensors", {"format": "pt"})
    return out
