"""The layer that methods work on and its inputs: the page's own, built in, from a file, or captured."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app.parts import html
from app.parts.views import Control, Shown, StatusView, View, listen, shows
from app.parts.widgets import PRIVATE, QUIET, block
from app.state.files import fresh_folder
from app.state.layers import BUILTIN, FILE, LAYERS, TEXT, THIS, documents, layers_in, tokens_to_keep
from app.state.models import runnable_model
from explorer import SourceError
from explorer.models.capture import capture, linear_layers, save_captured
from explorer.models.evaluate import MODEL, calibration_texts

TEXT_HINT = "one document per line; the model reads them in order until enough tokens are kept"


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
    lines, most = documents(text), tokens_to_keep(tokens)
    yield CaptureView.unchanged(status=html.status(f"Loading {where} …"))
    model = runnable_model(where)
    yield CaptureView.unchanged(status=html.status(f"Running {len(lines)} texts through {model.name} …"))
    (captured,) = capture(model, lines, [layer], most)
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
            height=150,
            elem_id="methods-file",
            elem_classes="upload",
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
        download = gr.DownloadButton("Download the captured layer", interactive=False, min_width=160)
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
