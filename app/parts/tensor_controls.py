"""The pickers of the tensor: built in, of a file, of a model. A choice in one is an act
(``app.state.record``)."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import gradio as gr

from app import limits
from app.parts.cache_capture import build_cache_capture
from app.parts.views import Shown, View
from app.parts.widgets import PRIVATE
from app.state.controls import DEFAULT_SAMPLE, SOURCES
from app.state.record import Record
from app.state.selection import file_source, model_source
from explorer.sources.base import TensorSource
from explorer.sources.coded import STORED
from explorer.sources.models import layers
from explorer.sources.samples import SAMPLES


@dataclass(frozen=True)
class TensorControls(View):
    """The components that choose a tensor."""

    source: Shown
    sample: Shown
    file: Shown
    file_tensor: Shown
    model: Shown
    revision: Shown
    layer: Shown


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
            elem_classes="upload",
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
        build_cache_capture(model, revision, layer, file)
    controls = TensorControls(source, sample, file, file_tensor, model, revision, layer)
    _wire(controls, list_layers)
    return controls


def _wire(controls: TensorControls, list_layers: gr.Button) -> None:
    """Another source is a form to fill in; it is an act where what it needs is there already."""
    sources = "(...held) => explorer.chooseSource(held)"
    controls.source.input(None, controls.in_order(), None, js=sources, **PRIVATE)
    for event, values, act in (
        (controls.sample.input, [controls.sample], "name => ({do: 'sample', name})"),
        (controls.file.upload, [controls.file], "file => ({do: 'file', name: file?.orig_name || ''})"),
        (controls.file_tensor.input, [controls.file_tensor], "name => ({do: 'tensor', name})"),
        (
            controls.layer.input,
            [controls.model, controls.revision, controls.layer],
            "(model, revision, layer) => ({do: 'layer', model, revision, layer})",
        ),
        *(
            (
                event,
                [controls.model, controls.revision],
                "(model, revision) => ({do: 'model', model, revision})",
            )
            for event in (list_layers.click, controls.model.submit, controls.revision.submit)
        ),
    ):
        event(None, values, None, js=f"(...held) => explorer.choose(({act})(...held))", **PRIVATE)


def tensor_view(chosen: Record) -> TensorControls:
    """What the pickers hold of a record that is shown; those of other sources stay as they are."""
    skipped = TensorControls.unchanged(source=chosen.source)
    if chosen.source == "builtin":
        return TensorControls(**vars(skipped) | {"sample": chosen.sample})
    if chosen.source == "file":
        choices = _choices(file_source(chosen.file))
        name = chosen.file_tensor
        file_tensor = gr.update(choices=choices, value=name)
        return TensorControls(**vars(skipped) | {"file": chosen.file, "file_tensor": file_tensor})
    choices = _choices(model_source(chosen.model, chosen.revision))
    return TensorControls(
        **vars(skipped)
        | {
            "model": chosen.model,
            "revision": chosen.revision,
            "layer": gr.update(choices=choices, value=chosen.layer),
        }
    )


def _choices(source: TensorSource) -> list[Any]:
    """Tensors by name and shape, then the codes of restored weights. The first of very many are listed;
    others can be typed."""
    codes = (source.info(f"{name}{STORED}") for name in sorted(source.restored))
    infos = (*layers(source), *codes)
    most = limits.current().listed
    if len(infos) > most:
        limits.notify(f"The first {most:,} of {len(infos):,} tensors are listed: type the name of another.")
    return [(f"{i.name}  {'×'.join(map(str, i.shape))} {i.dtype}", i.name) for i in infos[:most]]
