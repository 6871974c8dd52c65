"""The layer that methods work on and its inputs: the selected one, one built in, of a file, or captured."""

from __future__ import annotations

from torch import Tensor

from app import limits
from app.state.memo import Memo
from app.state.models import runnable_model
from app.state.selection import NothingChosenError, Selection, file_source, read_within, tensor_key
from explorer import SourceError
from explorer.core.backend import work_device
from explorer.methods.evaluate import MOST_TOKENS
from explorer.models.capture import capture, linear_layers
from explorer.models.evaluate import calibration_texts
from explorer.sources import load_sample

THIS, BUILTIN, FILE, TEXT = "this", "builtin", "file", "text"
LAYERS = {
    "mlp_up": ("MLP up-projection, layer 3", "mlp_up_in"),
    "mlp_down": ("MLP down-projection, layer 3", "mlp_down_in"),
    "attention_query": ("attention query, layer 0", "query_in"),
}
"""Built-in layers: the sample that is the weight, its label, and the sample that holds its inputs."""
NO_PAIR = (
    "the file needs two tensors of one layer, called NAME.weight [N, K] and NAME.activations [tokens, K]"
)


MOST_TEXT = 200_000
"""Characters of a visitor's text."""


def documents(text: str) -> list[str]:
    """The lines of a visitor's text that have words, one document each. ``SourceError`` if it is too long."""
    if len(text) > MOST_TEXT:
        raise SourceError(f"the text has {len(text):,} characters; up to {MOST_TEXT:,} are read here")
    return [line for line in text.splitlines() if line.strip()]


def tokens_to_keep(tokens: float | None) -> int:
    """How many tokens are captured; ``SourceError`` for too few and too many."""
    if tokens is None or not 2 <= tokens <= MOST_TOKENS:
        raise SourceError(f"tokens to keep are 2 … {MOST_TOKENS:,}")
    return int(tokens)


def chosen_layer(
    kind: str,
    sample: str,
    file: str | None,
    captured: str | None,
    name: str | None,
    here: Selection | None = None,
) -> tuple[str, Tensor, Tensor]:
    """(name, weight [N, K], at most ``MOST_TOKENS`` activations [tokens, K]) of the chosen layer, on the GPU
    if there is one. ``here`` is the page's own tensor, for ``kind`` "this".

    ``SourceError`` if nothing was captured or uploaded, and if the two do not fit each other.
    """
    if kind == THIS:
        return own_layer(here or Selection())
    if kind == TEXT and not captured:
        raise SourceError("capture a layer's inputs first")
    return _fitting(
        *layer_of(BUILTIN if kind == BUILTIN else FILE, sample, captured if kind == TEXT else file, name)
    )


def own_layer(here: Selection) -> tuple[str, Tensor, Tensor]:
    """``selected_layer`` as methods take it: on the GPU if there is one, at most ``MOST_TOKENS`` tokens, and
    so few that inputs and output are no larger than matrices of a product may be."""
    return _fitting(*selected_layer(here))


def _fitting(label: str, w: Tensor, x: Tensor) -> tuple[str, Tensor, Tensor]:
    if w.shape[1] != x.shape[1]:
        raise SourceError(f"the weight has {w.shape[1]} input channels, the activations {x.shape[1]}")
    device, tokens = work_device(), max(2, limits.current().product_elements // max(w.shape))
    return label, w.to(device), x[: min(MOST_TOKENS, tokens)].to(device)


def selected_layer(here: Selection) -> tuple[str, Tensor, Tensor]:
    """The selected tensor as a layer's weight, with its inputs: the sample's, those of the same file, or what
    the model feeds it on the built-in texts. ``SourceError`` if there are none."""
    inputs_of(here)
    if here.source == "builtin":
        return layer_of(BUILTIN, here.sample, None, None)
    if here.source == "file":
        return layer_of(FILE, "", here.file, _bare(here))
    return _CAPTURED.get(tensor_key(here), lambda: _captured_layer(here))


def inputs_of(here: Selection) -> None:
    """Raise ``SourceError`` unless the selected tensor is a layer's weight whose inputs are built in, are in
    its file, or can be had by running its model; nothing is read or run."""
    if here.source == "builtin" and here.sample not in LAYERS:
        raise SourceError(f"{here.sample} is no layer's weight with inputs; those are {', '.join(LAYERS)}")
    if here.source == "file":
        if not here.file:
            raise NothingChosenError(NO_PAIR)
        if _bare(here) not in layers_in(here.file):
            raise SourceError(f"{here.file_tensor} has no inputs in its file: {NO_PAIR}")
    if here.source == "model" and not here.layer:
        raise NothingChosenError("choose a layer of the model")
    if here.source == "model" and here.revision:
        raise SourceError("methods run a model's default revision: leave Revision empty, or use a file")


def _bare(here: Selection) -> str:
    """The layer whose weight the file's tensor is."""
    return (here.file_tensor or "").removesuffix("weight").removesuffix(".") or "layer"


NO_INPUTS = (
    "GPTQ needs the layer’s inputs (a model’s layer, or a file with activations); in all-MiniLM-L6-v2 the "
    "layers’ output gained 2.9 dB with INT4, 2.8 with INT3 (recorded)"
)
"""The gain is the median of 37 layers, from docs/which-format.md: errors of 6.7 against 9.4 %, and of 14.5
against 20.1 %."""


def codes_words(here: Selection) -> str:
    """What GPTQ gains and how to get inputs, where the selected tensor has none; empty where it has."""
    try:
        inputs_of(here)
    except SourceError:
        return NO_INPUTS
    return ""


_CAPTURED = Memo[tuple[str, Tensor, Tensor]](256 << 20)
TOKENS = 512
"""Number of tokens captured for a model's layer on the built-in texts."""


def _captured_layer(here: Selection) -> tuple[str, Tensor, Tensor]:
    model, wanted = runnable_model(here.model), (here.layer or "").removesuffix(".weight")
    found = [name for name in linear_layers(model) if wanted == name or wanted.endswith(f".{name}")]
    if not found:
        raise SourceError(f"{wanted} is not a linear layer of {model.name}, so it has no inputs")
    (captured,) = capture(model, calibration_texts(), found[:1], TOKENS)
    return found[0], captured.weight, captured.activations


def layer_of(kind: str, sample: str, file: str | None, name: str | None) -> tuple[str, Tensor, Tensor]:
    """(name, weight [N, K], activations [tokens, K]) of a layer, built in or of a file."""
    if kind == BUILTIN:
        if sample not in LAYERS:
            raise SourceError(f"no built-in layer {sample!r}; there are {', '.join(LAYERS)}")
        label, inputs = LAYERS[sample]
        return label, load_sample(sample).values, load_sample(inputs).values
    source, pairs = file_source(file), layers_in(file)
    chosen = name if name in pairs else pairs[0]
    bare = chosen == "layer" and "weight" in {info.name for info in source.infos}
    names = (("" if bare else f"{chosen}.") + part for part in ("weight", "activations"))
    w, x = (read_within(source, one).values.float() for one in names)
    return chosen, w, x


def layers_in(file: str | None) -> list[str]:
    """The layers of which a file has both weight and activations; ``SourceError`` if there is none.

    Two tensors called ``weight`` and ``activations``, without a name before them, are the layer called
    "layer".
    """
    names = {info.name for info in file_source(file).infos}
    layers = sorted(
        name.removesuffix(".weight")
        for name in names
        if name.endswith(".weight") and f"{name.removesuffix('.weight')}.activations" in names
    )
    if {"weight", "activations"} <= names:
        layers = ["layer", *layers]
    if not layers:
        raise SourceError(NO_PAIR)
    return layers
