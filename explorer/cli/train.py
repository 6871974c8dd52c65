"""The command that trains: accuracy against bits, on images that ship with scikit-learn."""

from __future__ import annotations

import dataclasses
from typing import Annotated

import typer

from explorer.cli.device import Device, use_device
from explorer.cli.options import MODELS, Json, examples, parse_scheme, split
from explorer.cli.output import PrintedTable, counted, emit

app = typer.Typer()


@app.command(
    rich_help_panel=MODELS,
    epilog=examples("train --widths 4,ternary,binary --seeds 1", "train --loss-scaling"),
)
def train(
    widths: Annotated[
        str | None, typer.Option(help="Comma-separated: 8 … 2, ternary, binary.", show_default="all")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Networks of each kind.")] = 3,
    epochs: Annotated[int, typer.Option(help="Epochs of the float32 network.")] = 20,
    again: Annotated[int, typer.Option(help="Epochs of training on.")] = 8,
    activations: Annotated[
        str | None,
        typer.Option(help="Also quantize the inputs of all layers but the first, e.g. int8_row."),
    ] = None,
    loss_scaling: Annotated[
        bool, typer.Option("--loss-scaling", help="Instead: which gradients float16 loses, by loss scale.")
    ] = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Accuracy against bits on scikit-learn's digits, before and after quantization-aware training."""
    from explorer.training.digits import WIDTHS, accuracy_rows, count
    from explorer.training.digits import train as train_networks

    use_device(device)
    if loss_scaling:
        _loss_scaling(as_json)
        return
    names = split(widths) if widths is not None else list(WIDTHS)
    of_inputs = parse_scheme(activations) if activations else None
    runs = train_networks(names, seeds, epochs, again, of_inputs)
    results = counted("networks", runs, count(names, max(seeds, 0)), as_json)
    rows = [
        (row.width, row.stage, 100 * row.mean, 100 * row.least, 100 * row.most, row.seeds)
        for row in accuracy_rows(results)
    ]
    columns = ("width", "stage", "mean", "least", "most", "seeds", "unit")
    emit(as_json, results, PrintedTable(columns, [(*row, "% of 450 test images") for row in rows]))


def _loss_scaling(as_json: bool) -> None:
    from explorer.training.digits import gradient_magnitudes, underflow

    rows = underflow(gradient_magnitudes())
    columns = tuple(field.name for field in dataclasses.fields(rows[0]))
    emit(as_json, rows, PrintedTable(columns, [dataclasses.astuple(row) for row in rows]))
