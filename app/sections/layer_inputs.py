"""The layer that methods work on and its inputs: the page's own, built in, from a file, or captured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr
from torch import Tensor

from app import html, limits
from app.cache import BoundedCache
from app.files import fresh_folder
from app.models import runnable_model
from app.selection import NothingChosenError, Selection, file_source, tensor_key
from app.views import Control, Shown, StatusView, View, listen, shows
from app.widgets import PRIVATE, QUIET, block
from explorer import SourceError
from explorer.core.backend import work_device
from explorer.methods.evaluate import MOST_TOKENS
from explorer.models.capture import capture, linear_layers, save_captured
from explorer.models.evaluate import MODEL, calibration_texts
from explorer.sources import load_sample

THIS, BUILTIN, FILE, TEXT = "this", "builtin", "file", "text"
LAYERS = {
    "mlp_up": ("MLP up-projection, layer 3", "mlp_up_in"),
    "mlp_down": ("MLP down-projection, layer 3", "mlp_down_in"),
    "attention_query": ("attention query, layer 0", "query_in"),
}
"""Built-in layers: the sample that is the weight, its label, and the sample that holds its inputs."""
MOST_TEXT = 200_000
TEXT_HINT = "a line is a document; the model reads them one by one, until enough tokens are kept"
NO_PAIR = (
    "the file needs two tensors of one layer, called NAME.weight [N, K] and NAME.activations [tokens, K]"
)


@dataclass(frozen=True)
class CaptureView(StatusView):
    """A capture: status, the file for the methods to read, and the button to download it."""

    captured: Shown
    download: Shown


@dataclass(frozen=True)
class LinearLayersView(View):
    """The linear layers of a model, and a line about them."""

    layer: Shown
    status: Shown


@dataclass(frozen=True)
class LayerInputs:
    """The components that choose a layer and its inputs."""

    kind: Control
    sample: Control
    file: Control
    captured: Control
    layer: Control

    def values(self) -> list[Control]:
        """The inputs of a handler that calls ``chosen_layer``, in its order."""
        return [self.kind, self.sample, self.file, self.captured, self.layer]


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
    """``selected_layer`` as methods take it: on the GPU if there is one, at most ``MOST_TOKENS`` tokens."""
    return _fitting(*selected_layer(here))


def _fitting(label: str, w: Tensor, x: Tensor) -> tuple[str, Tensor, Tensor]:
    if w.shape[1] != x.shape[1]:
        raise SourceError(f"the weight has {w.shape[1]} input channels, the activations {x.shape[1]}")
    device = work_device()
    return label, w.to(device), x[:MOST_TOKENS].to(device)


def selected_layer(here: Selection) -> tuple[str, Tensor, Tensor]:
    """The selected tensor as a layer's weight, with its inputs: the sample's, those of the same file, or what
    the model feeds it on the built-in texts. ``SourceError`` if there are none."""
    if here.source == "builtin":
        if here.sample not in LAYERS:
            raise SourceError(
                f"{here.sample} is no layer's weight with inputs; those are {', '.join(LAYERS)}"
            )
        return layer_of(BUILTIN, here.sample, None, None)
    if here.source == "file":
        if not here.file:
            raise NothingChosenError(NO_PAIR)
        name = (here.file_tensor or "").removesuffix("weight").removesuffix(".") or "layer"
        if name not in layers_in(here.file):
            raise SourceError(f"{here.file_tensor} has no inputs in its file: {NO_PAIR}")
        return layer_of(FILE, "", here.file, name)
    if not here.layer:
        raise NothingChosenError("choose a layer of the model")
    return _CAPTURED.get(tensor_key(here), lambda: _captured_layer(here), _size)


def _size(layer: tuple[str, Tensor, Tensor]) -> int:
    return layer[1].nbytes + layer[2].nbytes


_CAPTURED = BoundedCache[tuple[str, Tensor, Tensor]](256 << 20)
TOKENS = 512
"""Of a model's own layer, captured on the built-in texts."""


def _captured_layer(here: Selection) -> tuple[str, Tensor, Tensor]:
    if here.revision:
        raise SourceError("methods run a model's default revision: leave Revision empty, or use a file")
    model, wanted = runnable_model(here.model), (here.layer or "").removesuffix(".weight")
    found = [name for name in linear_layers(model) if wanted == name or wanted.endswith(f".{name}")]
    if not found:
        raise SourceError(f"{wanted} is no linear layer of {model.name}, so that it has no inputs")
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
    prefix, most = "" if bare else f"{chosen}.", limits.current().elements
    return (
        chosen,
        source.matrix(f"{prefix}weight", most).values.float(),
        source.matrix(f"{prefix}activations", most).values.float(),
    )


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


@shows()
def list_layers_of_file(file: str | None) -> Any:
    """The layers of an uploaded file, for the picker."""
    layers = layers_in(file)
    return gr.update(choices=layers, value=layers[0])


@shows(LinearLayersView)
def list_linear(where: str) -> LinearLayersView:
    """The linear layers of a model, for the picker, and a line about them."""
    names = linear_layers(runnable_model(where))
    if not names:
        raise SourceError(f"{where} has no linear layers")
    return LinearLayersView(
        layer=gr.update(choices=list(names), value=names[len(names) // 2]),
        status=html.status(f"{len(names)} linear layers"),
    )


@shows(CaptureView)
def run_capture(where: str, layer: str | None, text: str, tokens: float | None) -> Iterator[CaptureView]:
    """Run a model on text and keep one layer's inputs; yields a status and the visitor's own file, twice: for
    the methods, and to download."""
    if not layer:
        raise SourceError("list the model's layers and choose one")
    if len(text) > MOST_TEXT:
        raise SourceError(f"the text has {len(text):,} characters; up to {MOST_TEXT:,} are read here")
    if tokens is None or not 2 <= tokens <= MOST_TOKENS:
        raise SourceError(f"tokens to keep are 2 … {MOST_TOKENS:,}")
    yield CaptureView.unchanged(status=html.status(f"Loading {where} …"))
    model, lines = runnable_model(where), [line for line in text.splitlines() if line.strip()]
    yield CaptureView.unchanged(status=html.status(f"Running {len(lines)} texts through {model.name} …"))
    (captured,) = capture(model, lines, [layer], int(tokens))
    path = fresh_folder() / "captured.safetensors"
    save_captured([captured], path)
    shape, kept = "×".join(map(str, captured.weight.shape)), len(captured.activations)
    yield CaptureView(
        status=html.status(f"{layer}: weight {shape}, {kept} tokens kept. Run the methods."),
        captured=str(path),
        download=gr.update(value=str(path), interactive=True),
    )


def build_layer_inputs() -> LayerInputs:
    """Lay out the choice of a layer; only what belongs to the chosen kind is shown."""
    captured = gr.State(None)
    with gr.Row():
        kind = gr.Radio(
            [("this tensor", THIS), ("built in", BUILTIN), ("my file", FILE), ("a model on my text", TEXT)],
            value=THIS,
            label="Layer and its inputs",
            elem_id="methods-kind",
        )
        sample = gr.Dropdown(
            [(label, key) for key, (label, _) in LAYERS.items()],
            value="mlp_up",
            label="Built-in layer of all-MiniLM-L6-v2",
            elem_id="methods-sample",
            visible=False,
        )
    with gr.Column(visible=False) as of_file:
        file = gr.File(
            label="A .safetensors file with NAME.weight [N, K] and NAME.activations [tokens, K]",
            file_types=[".safetensors"],
            height=140,
            elem_id="methods-file",
        )
        layer = gr.Dropdown([], label="Layer", allow_custom_value=True)
    with gr.Column(visible=False) as of_text:
        _build_capture(captured)
    shown_for = {BUILTIN: sample, FILE: of_file, TEXT: of_text}
    kind.change(
        lambda chosen: [gr.update(visible=chosen == name) for name in shown_for],
        kind,
        list(shown_for.values()),
        **PRIVATE,
    )
    listen(
        file.upload,
        list_layers_of_file,
        file,
        layer,
        api_name="layers_of_file",
        api_visibility="undocumented",
        **QUIET,
    )
    return LayerInputs(kind, sample, file, captured, layer)


def _build_capture(captured: Control) -> None:
    with gr.Row():
        where = gr.Textbox(MODEL, label="Model: folder or Hub id", max_lines=1, elem_id="methods-model")
        listing = gr.Button("List layers", min_width=120)
        layer = gr.Dropdown(
            [], label="Linear layer (type to filter)", allow_custom_value=True, elem_id="methods-layer"
        )
        tokens = gr.Number(512, label="Tokens to keep", precision=0, minimum=2, min_width=110)
    text = gr.Textbox(
        "\n".join(calibration_texts()),
        label="Text",
        info=TEXT_HINT,
        lines=4,
        max_lines=10,
        elem_id="methods-text",
    )
    with gr.Row():
        take = gr.Button("Capture", min_width=120)
        download = gr.DownloadButton("Download what was captured", interactive=False, min_width=160)
    status = block(html.status("Nothing captured yet."), elem_id="capture-status")
    listen(
        listing.click,
        list_linear,
        where,
        LinearLayersView(layer=layer, status=status),
        api_name="list_linear_layers",
        show_progress="minimal",
    )
    listen(
        take.click,
        run_capture,
        [where, layer, text, tokens],
        CaptureView(status=status, captured=captured, download=download),
        api_name="capture",
        show_progress="minimal",
        concurrency_id="compute",
    )
