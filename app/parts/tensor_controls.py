"""The pickers of the tensor: built in, of a file, of a model; and what a change of each does."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import gradio as gr

from app import limits
from app.parts.views import Control, Shown, View, listen, shows
from app.parts.widgets import JS_BEFORE_CHANGE, JS_BEFORE_UPLOAD, LATEST, PRIVATE
from app.state.controls import DEFAULT_SAMPLE, SOURCES
from app.state.selection import Selection, file_source, matrix_of, model_source
from explorer.sources.models import layers
from explorer.sources.samples import SAMPLES
from explorer.sources.tensors import TensorInfo


@dataclass(frozen=True)
class FileView(View):
    """An uploaded file and its tensors, the source that an upload switches to, and ``upload_error``: why it
    was refused."""

    file: Shown
    file_tensor: Shown
    source: Shown
    upload_error: Shown


@dataclass(frozen=True)
class TensorControls:
    """The components that choose a tensor."""

    source: Control
    sample: Control
    file: Control
    file_tensor: Control
    model: Control
    revision: Control
    list_layers: Control
    layer: Control


def build_tensor_controls() -> TensorControls:
    """Lay out the pickers; only those of the chosen source are shown."""
    source = gr.Dropdown(
        [(label, key) for key, label in SOURCES.items()],
        value="builtin",
        label="Tensor from",
        elem_id="source",
    )
    with gr.Column(elem_classes="of-source of-builtin"):
        samples = [(f"{s.label}{' (synthetic)' if s.synthetic else ''}", s.name) for s in SAMPLES.values()]
        sample = gr.Dropdown(samples, value=DEFAULT_SAMPLE, label="Built-in tensor", elem_id="sample")
    with gr.Column(elem_classes="of-source of-file"):
        accepted = limits.current().sources.suffixes
        file = gr.File(
            label=f"Tensor file ({', '.join(accepted)})",
            file_types=list(accepted),
            height=150,
            elem_id="file",
        )
        file_tensor = gr.Dropdown(
            [], value=None, label="Tensor", allow_custom_value=True, elem_id="file-tensor"
        )
    with gr.Column(elem_classes="of-source of-model"):
        model = gr.Textbox(label="Folder or Hub id", placeholder="owner/name", max_lines=1, elem_id="model")
        revision = gr.Textbox(label="Revision (optional)", placeholder="main", max_lines=1)
        list_layers = gr.Button("List layers", size="sm")
        layer = gr.Dropdown(
            [], value=None, label="Layer (type to filter)", allow_custom_value=True, elem_id="layer"
        )
    source.change(None, source, None, js="source => explorer.showSource(source)", **PRIVATE)
    return TensorControls(source, sample, file, file_tensor, model, revision, list_layers, layer)


@shows(FileView)
def opened_file(path: str | None, shown: tuple[str, str | None, str | None] | None) -> FileView:
    """List the tensors of an uploaded file and choose the first matrix.

    A file that cannot be read, or whose only tensor cannot be shown, is refused: the controls go back to what
    is ``shown`` (source, file, tensor).
    """
    try:
        infos = file_source(path).infos
        choices = _tensor_choices(infos)
        if len(infos) == 1:
            matrix_of(Selection(source="file", file=path, file_tensor=choices["value"]))
    except (ValueError, OSError) as error:
        limits.notify(str(error))
        source, file, tensor = shown or ("builtin", None, None)
        kept = gr.update(value=tensor) if file else gr.update(choices=[], value=None)
        return FileView(file=file, file_tensor=kept, source=source, upload_error=str(error))
    return FileView(file=gr.skip(), file_tensor=choices, source="file", upload_error="")


@shows()
def opened_model(model: str, revision: str) -> Any:
    """List the layers of a model (folder or Hub id) from its headers and choose the first matrix."""
    return _tensor_choices(layers(model_source(model, revision)))


def _tensor_choices(infos: tuple[TensorInfo, ...]) -> Any:
    """A dropdown of tensors with shapes; the first weight matrix that is no embedding is chosen. Of very many
    the first are listed; others can be typed."""
    most = limits.current().listed
    if len(infos) > most:
        limits.notify(f"The first {most:,} of {len(infos):,} tensors are listed: type the name of another.")
    labels = [(f"{i.name}  {'×'.join(map(str, i.shape))} {i.dtype}", i.name) for i in infos[:most]]
    matrices = [i for i in infos if len(i.shape) >= 2 and min(i.shape) > 1]
    inner = [i for i in matrices if "embed" not in i.name.lower()]
    best = (inner or matrices or list(infos))[:1]
    return gr.update(choices=labels, value=best[0].name if best else None)


def wire_tensor(
    controls: TensorControls, shown: Control, upload_error: Control, changed_by: Callable[[Any], None]
) -> None:
    """Run the handlers above when a picker changes, and then what follows the selection:
    ``changed_by(event)``. ``shown``: the current view; ``upload_error``: the reason why a file was
    rejected."""
    for name in ("source", "sample", "file_tensor", "layer"):
        picker = getattr(controls, name)
        changed_by(picker.input(None, None, None, js="() => { explorer.began(); }", **PRIVATE))
    outputs = FileView(
        file=controls.file,
        file_tensor=controls.file_tensor,
        source=controls.source,
        upload_error=upload_error,
    )
    opened = listen(
        controls.file.upload,
        opened_file,
        [controls.file, shown],
        outputs,
        js=JS_BEFORE_UPLOAD,
        api_name="open_file",
        **LATEST,
    )
    changed_by(opened)
    for event, name, visibility in (
        (controls.list_layers.click, "list_layers", "public"),
        (controls.model.submit, "submit_model", "undocumented"),
        (controls.revision.submit, "submit_revision", "undocumented"),
    ):
        listed = listen(
            event,
            opened_model,
            [controls.model, controls.revision],
            controls.layer,
            js=JS_BEFORE_CHANGE,
            api_name=name,
            api_visibility=visibility,
            show_progress="minimal",
        )
        changed_by(listed)
