"""Checkpoints by other programs, made and read back by an interpreter that has them: run as a file.

    python peer_files.py llmcompressor-gptq MODEL TOKENS OUT        writes OUT
    python peer_files.py read OUT RESTORED                          writes the weights that its reader gives

It imports none of this project: those programs need other versions of the packages that both use.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable, Iterator
from importlib import metadata
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn
from torch.utils.data import DataLoader, Dataset

GROUP = 64
"""Weights that share a scale: rows of 576 have no groups of 128."""
LENGTH = 512
"""Tokens of a sequence that AutoRound learns from: it takes sequences of one length."""


def main(arguments: list[str]) -> None:
    """Run one of ``MAKERS``, or read: the last line that is printed is JSON."""
    name, *rest = arguments
    if name == "read":
        read(Path(rest[0]), Path(rest[1]))
        print(json.dumps({"reader": f"transformers {metadata.version('transformers')}"}))
        return
    maker, package = MAKERS[name]
    model, tokens, out = rest
    sequences = json.loads(Path(tokens).read_text())
    start = time.perf_counter()
    maker(model, sequences, out)
    print(
        json.dumps({"seconds": time.perf_counter() - start, "by": f"{package} {metadata.version(package)}"})
    )


def by_llmcompressor(model: str, sequences: list[list[int]], out: str) -> None:
    """llm-compressor's GPTQ: symmetric INT4 in groups of ``GROUP``, layer after layer."""
    from compressed_tensors.quantization import QuantizationArgs, QuantizationScheme
    from llmcompressor import oneshot
    from llmcompressor.modifiers.gptq import GPTQModifier
    from transformers import AutoModelForCausalLM, AutoTokenizer

    weights = QuantizationArgs(num_bits=4, type="int", symmetric=True, strategy="group", group_size=GROUP)
    scheme = QuantizationScheme(targets=["Linear"], weights=weights)
    network = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    oneshot(
        model=network,
        tokenizer=AutoTokenizer.from_pretrained(model),
        dataset=DataLoader(_Batches(sequences), batch_size=None),
        recipe=GPTQModifier(config_groups={"group_0": scheme}, ignore=["lm_head"]),
        num_calibration_samples=len(sequences),
        max_seq_length=max(map(len, sequences)),
    )
    network.save_pretrained(out, save_compressed=True)


def by_autoround(model: str, sequences: list[list[int]], out: str) -> None:
    """AutoRound's INT4 in groups of ``GROUP`` with its usual 200 iterations."""
    from auto_round import AutoRound
    from transformers import AutoModelForCausalLM, AutoTokenizer

    every = torch.tensor([token for ids in sequences for token in ids])
    chunks = [chunk[None] for chunk in every.split(LENGTH) if len(chunk) == LENGTH] or [every[None]]
    network = AutoModelForCausalLM.from_pretrained(model, dtype="auto")
    found = AutoRound(
        network,
        AutoTokenizer.from_pretrained(model),
        scheme="W4A16",
        bits=4,
        group_size=GROUP,
        sym=True,
        dataset=[_batch(chunk) for chunk in chunks],
        nsamples=len(chunks),
        seqlen=chunks[0].shape[1],
    )
    found.quantize_and_save(out, format="auto_round")
    (saved,) = [path.parent for path in Path(out).rglob("config.json")]  # its own folder, of the model's name
    if saved != Path(out):
        for path in saved.iterdir():
            path.rename(Path(out) / path.name)


class _Batches(Dataset[dict[str, Tensor]]):
    """A batch of each of the sequences."""

    def __init__(self, sequences: list[list[int]]) -> None:
        self.sequences = sequences

    def __len__(self) -> int:
        return len(self.sequences)

    def __getitem__(self, index: int) -> dict[str, Tensor]:
        return _batch(torch.tensor([self.sequences[index]]))


def _batch(ids: Tensor) -> dict[str, Tensor]:
    """int64 [1, tokens] as networks take them."""
    return {"input_ids": ids, "attention_mask": torch.ones_like(ids)}


MAKERS: dict[str, tuple[Callable[[str, list[list[int]], str], None], str]] = {
    "llmcompressor-gptq": (by_llmcompressor, "llmcompressor"),
    "autoround": (by_autoround, "auto-round"),
}


def read(folder: Path, out: Path) -> None:
    """Write ``out``, the plain float32 model of the weights by which transformers multiplies when it has
    loaded ``folder``: each quantized layer's answer to the identity."""
    from transformers import AutoConfig, AutoModelForCausalLM

    network = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu").eval()
    with torch.no_grad():  # compressed-tensors restores its layers when the model first runs
        network(input_ids=torch.zeros(1, 2, dtype=torch.long))
    config = AutoConfig.from_pretrained(folder).to_dict()
    config.pop("quantization_config")
    plain = type(network)(type(network.config).from_dict(config | {"dtype": "float32"}))
    there, wanted = dict(network.state_dict()), plain.state_dict()
    for name, module in _linear(plain):
        there[f"{name}.weight"] = _weight(network.get_submodule(name), module.in_features)
    missing = [name for name in wanted if name not in there]
    if missing:
        raise ValueError(f"the reader gave no {', '.join(missing[:3])}")
    plain.load_state_dict({name: there[name].float() for name in wanted})
    plain.save_pretrained(out)


def _linear(network: nn.Module) -> Iterator[tuple[str, nn.Linear]]:
    for name, module in network.named_modules():
        if isinstance(module, nn.Linear):
            yield name, module


@torch.no_grad()
def _weight(module: Any, width: int) -> Tensor:
    """float32 [N, K]: the weight of a layer, whatever it holds, in the most exact dtype that it multiplies
    in."""
    bias = getattr(module, "bias", None)
    for dtype in (torch.float32, torch.float16, torch.bfloat16):
        try:
            answer = module(torch.eye(width, dtype=dtype)).float()
        except RuntimeError:  # the layer multiplies in its own dtype alone
            continue
        return (answer - bias.float() if bias is not None else answer).t().contiguous()
    raise ValueError(f"{type(module).__name__} multiplies in none of float32, float16 and bfloat16")


if __name__ == "__main__":
    main(sys.argv[1:])
