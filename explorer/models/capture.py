"""Models of transformers, and the inputs of their linear layers when they are run on text.

Models are loaded from safetensors only, and none of their own code is run. A fixed number of tokens is kept
for each layer, and the run ends as soon as all layers have them.
"""

from __future__ import annotations

import copy
import json
import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Any

import torch
from torch import Tensor, nn

from explorer.export.files import write_tensors
from explorer.models.skeleton import auto_class, check_counts, few_modules
from explorer.models.texts import AnyTexts, texts_of, token_sequences
from explorer.progress import Progress, StoppedError, checkpoint
from explorer.sources.base import SourceError, TensorSource, first_line
from explorer.sources.coded import CONFIG, SETTINGS, as_in_network, stored_dtype
from explorer.sources.fetched import fetch_model
from explorer.sources.models import HubModel, local_folder, open_model
from explorer.sources.source_limits import LOCAL, SourceLimits, within

LANGUAGE_PART = "language part"
LONGEST = 512
"""Largest number of tokens of a text that are run."""
_MOST_MODULES, _MOST_BUFFERS = 20_000, 1 << 26
_NOTHING = "give at least one line of text, one layer, and one token to keep"


@dataclass(frozen=True, eq=False)
class Model:
    """A transformers network in evaluation mode, and its tokenizer.

    It has no head, unless ``causal``: then its outputs have ``logits`` for the next token. ``part``: the part
    of it that texts run, in words; empty if they run all. It computes in float32; ``dtype`` is its files'.
    """

    network: nn.Module
    tokenizer: Any
    device: torch.device
    name: str
    causal: bool = False
    part: str = ""
    dtype: torch.dtype = torch.float32


@dataclass(frozen=True, eq=False)
class Captured:
    """One linear layer: ``weight`` float32 [N, K] and ``activations`` float32 [tokens, K], on the CPU."""

    name: str
    weight: Tensor
    activations: Tensor


def load_model(
    where: str,
    revision: str | None = None,
    device: str | torch.device = "cpu",
    limits: SourceLimits = LOCAL,
    head: bool = False,
) -> Model:
    """Load a transformers model and its tokenizer from a folder or the Hub.

    With ``head`` a causal language model, by its config's architecture, gets its output head. ``SourceError``
    if loading fails, for a model that ``limits`` do not run, and for one with files that lack weights of its
    config: transformers would draw them at random.
    """
    import transformers
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    where, limits = where.strip(), within(limits)
    check_runs(where, revision, limits)
    source = open_model(where, revision, limits)  # refuses in our words, without transformers' retries
    if source.problems:
        raise SourceError(source.problems[0])
    folder = local_folder(where, limits)
    if isinstance(source, HubModel) and not limits.folders:
        folder = fetch_model(source, limits)
    if folder is not None and not (folder / CONFIG).is_file():
        raise SourceError(f"{where} holds no config.json: a model's folder has that, weights and a tokenizer")
    name = where if folder is None else str(folder)
    options = {
        "revision": None if folder else revision,
        "trust_remote_code": False,
        "local_files_only": folder is not None,
    }
    with loading(where):
        stated = source.config() if folder is None else json.loads((folder / CONFIG).read_bytes())
        check_counts(stated, source.origin, _MOST_MODULES)
        config = AutoConfig.from_pretrained(name, **options)
        check_config(config, source)
        causal = head and is_causal(config)
        tokenizer = AutoTokenizer.from_pretrained(name, **options)
        opens = getattr(transformers, auto_class(config)) if causal else AutoModel
        if source.restored:
            weights = {info.name: as_in_network(source, info.name) for info in source.infos}
            network, found = network_of(opens, config, weights)
        else:
            if hasattr(config, SETTINGS):  # how to quantize what is loaded, by other packages
                del config.quantization_config
            network, found = opens.from_pretrained(
                name,
                config=config,
                use_safetensors=True,
                dtype=torch.float32,
                output_loading_info=True,
                **options,
            )
    missing = sorted(found["missing_keys"])
    if missing:
        raise SourceError(
            f"{where} lacks {len(missing):,} of the weights that its config asks for, such as {missing[0]}"
        )
    shown = folder.name if folder is not None and limits.folders else where
    part = LANGUAGE_PART if causal and config.get_text_config() is not config else ""
    dtype = stored_dtype(getattr(config, "dtype", None), source.infos)
    return Model(network.eval().to(device), tokenizer, torch.device(device), shown, causal, part, dtype)


def check_runs(where: str, revision: str | None, limits: SourceLimits) -> None:
    """``SourceError`` for a model that is not run under ``limits``. Of those that are, only what their owners
    put there: anybody can ask for a change, which then has a revision in their repository."""
    if limits.runs is None or (where in limits.runs and not revision):
        return
    what = f"{where} at the revision {revision}" if where in limits.runs else where
    raise SourceError(
        f"{what} is not run on text on this page, only read: install the explorer and run it on your own "
        f"machine. This page runs {', '.join(limits.runs)}"
    )


def network_of(opens: Any, config: Any, weights: Mapping[str, Tensor]) -> tuple[nn.Module, dict[str, Any]]:
    """Load a model whose files hold codes: transformers' class ``opens`` with the restored float32
    ``weights``. Returns the network, and transformers' report of the loading.

    transformers 5.23 restores FP8 by itself, but spreads scales evenly over the rows: with tiles that an edge
    cuts it fails, or gives other values.
    """
    config = copy.deepcopy(config)
    del config.quantization_config
    with torch.device("meta"):
        network = type(opens.from_config(config, trust_remote_code=False))
    loaded: tuple[nn.Module, dict[str, Any]] = network.from_pretrained(
        None, config=config, state_dict=dict(weights), dtype=torch.float32, output_loading_info=True
    )
    return loaded


def is_causal(config: Any) -> bool:
    """True if the config's trained class predicts the next token of a text, also one that takes images or
    sound beside it."""
    names = [str(name) for name in getattr(config, "architectures", None) or []]
    if any(name.endswith(("ForCausalLM", "LMHeadModel")) for name in names):
        return True
    beside = config.get_text_config() is not config and not getattr(config, "is_encoder_decoder", False)
    return beside and any(name.endswith("ForConditionalGeneration") for name in names)


@contextmanager
def loading(where: str) -> Iterator[None]:
    """Raise ``SourceError`` instead of any error of transformers, whose type depends on the config or
    tokenizer."""
    try:
        yield
    except (SourceError, StoppedError):
        raise
    except Exception as error:
        raise SourceError(f"{where} could not be loaded by transformers: {first_line(error)}") from error


def check_config(config: Any, source: TensorSource) -> None:
    """``SourceError`` if ``config`` describes a network that reads no text, or one with more weights than
    ``source`` holds.

    A network is built without memory for its weights; one of too many layers is refused before that.
    """
    from transformers import AutoModel

    if not getattr(config.get_text_config(), "vocab_size", None):  # of images, which may take long to build
        raise SourceError(f"{source.origin} reads no text: its config has no vocab_size")
    with torch.device("meta"), few_modules(source.origin, _MOST_MODULES):
        network = AutoModel.from_config(config, trust_remote_code=False)
    needed = sum(p.numel() for p in network.parameters())
    held = sum(info.elements for info in source.infos)
    if needed > held:
        raise SourceError(
            f"{source.origin}: its config describes {needed:,} weights, its files hold {held:,}; the rest "
            "would be random"
        )
    buffers = sum(b.numel() for b in network.buffers())
    if buffers > held + _MOST_BUFFERS:
        raise SourceError(f"{source.origin}: its config describes tables of {buffers:,} elements")


def linear_layers(model: Model, containing: str = "") -> tuple[str, ...]:
    """Name the model's linear layers whose names contain ``containing`` (any case)."""
    return tuple(name for name in _linear_modules(model) if containing.lower() in name.lower())


def _linear_modules(model: Model) -> dict[str, nn.Linear]:
    return {name: m for name, m in model.network.named_modules() if isinstance(m, nn.Linear)}


def capture(
    model: Model,
    texts: AnyTexts,
    names: Sequence[str],
    tokens: int = 512,
    progress: Progress | None = None,
) -> list[Captured]:
    """Run ``texts`` one by one and keep the first ``tokens`` inputs of each of the layers ``names``, in the
    order in which the model runs them.

    ``SourceError`` for unknown layers, no text, and layers that no text reached.
    """
    linear = _linear_modules(model)
    for name in names:
        if name not in linear:
            raise SourceError(
                f"{model.name} has no linear layer {name!r}; it has {len(linear)}, "
                f"such as {', '.join([*linear][:3])}"
            )
    if not names or tokens < 1:
        raise SourceError(_NOTHING)
    found: dict[str, list[Tensor]] = {}
    missing = dict.fromkeys(names, tokens)

    def keep(inputs: Tensor, name: str) -> None:
        kept = found.setdefault(name, [])
        if missing[name]:
            kept.append(inputs.reshape(-1, inputs.shape[-1])[: missing[name]].float().cpu())
            missing[name] -= len(kept[-1])

    watchers = {name: partial(keep, name=name) for name in names}
    watch(model, texts, watchers, progress, lambda: not any(missing.values()))
    if left := missing.keys() - found.keys():
        raise SourceError(f"no text reached the layer {min(left)!r}")
    return [
        Captured(n, linear[n].weight.detach().float().cpu(), torch.cat(rows)) for n, rows in found.items()
    ]


def watch(
    model: Model,
    texts: AnyTexts,
    watchers: Mapping[str, Callable[[Tensor], None]],
    progress: Progress | None = None,
    enough: Callable[[], bool] = lambda: False,
) -> None:
    """Run ``texts`` one by one until ``enough``; ``watchers``: module of the network -> function that is
    called with the module's inputs [..., K].

    Runs of the network in other threads are not watched. ``SourceError`` without a text.
    """
    texts = texts_of(texts)
    if not texts:
        raise SourceError(_NOTHING)
    sequences = token_sequences(model, texts, LONGEST)
    thread = threading.get_ident()

    def hook(_: nn.Module, inputs: tuple[Tensor, ...], watcher: Callable[[Tensor], None]) -> None:
        if threading.get_ident() == thread:
            watcher(inputs[0].detach())

    hooks = [
        model.network.get_submodule(name).register_forward_pre_hook(partial(hook, watcher=watcher))
        for name, watcher in watchers.items()
    ]
    try:
        for index, sequence in enumerate(sequences):
            checkpoint()
            with torch.no_grad():
                model.network(**{k: torch.tensor([v]).to(model.device) for k, v in sequence.inputs.items()})
            if progress is not None:
                progress(index + 1, len(sequences))
            if enough():
                break
    finally:
        for handle in hooks:
            handle.remove()


def save_captured(layers: Sequence[Captured], path: str | Path) -> None:
    """Write ``<layer>.weight`` and ``<layer>.activations`` of each layer to one .safetensors file.

    The file is complete or not there; ``OSError`` if it cannot be written.
    """
    tensors = {f"{layer.name}.weight": layer.weight.contiguous() for layer in layers}
    tensors |= {f"{layer.name}.activations": layer.activations.contiguous() for layer in layers}
    write_tensors(tensors, path, {})
