"""The command that holds two checkpoints against each other."""

from __future__ import annotations

import csv
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli.options import MODELS, Json, Revision, check_out, examples
from explorer.cli.output import PrintedTable, print_json, print_table, reporting, say

if TYPE_CHECKING:
    from explorer.checkpoints.diff import LayerDiff

app = typer.Typer()


@app.command(
    rich_help_panel=MODELS,
    epilog=examples(
        "diff path/to/model path/to/model-awq --sort db",
        "diff path/to/model model-Q4_K_M.gguf --csv layers.csv",
        "diff owner/name owner/name-GPTQ --layer layers.0. --json",
    ),
)
def diff(
    original: Annotated[str, typer.Argument(help="The model: a folder, a file or a Hub id (owner/name).")],
    quantized: Annotated[
        str,
        typer.Argument(
            help="The same model quantized: a folder or Hub id in the layout of compressed-tensors, GPTQ, "
            "AWQ, bitsandbytes, FP8 or MXFP4, a .gguf file, or files of this program."
        ),
    ],
    layer: Annotated[str, typer.Option("--layer", help="Only weights whose name contains this.")] = "",
    sort: Annotated[
        str, typer.Option("--sort", help="name (as in the files), db (the worst first) or bits.")
    ] = "name",
    csv_file: Annotated[
        str | None, typer.Option("--csv", metavar="FILE", help="Write all weights to this .csv file.")
    ] = None,
    revision: Revision = None,
    as_json: Json = False,
) -> None:
    """Hold a quantized checkpoint against its original: layer by layer scheme, bits and error.

    Shown are layers of codes and all that differs; --csv and --json have every weight. --revision is that of
    QUANTIZED.
    """
    from explorer.checkpoints.diff import SORTS, open_pair, ordered
    from explorer.checkpoints.diff import diff as compare_checkpoints
    from explorer.checkpoints.diff_words import COLUMNS, line, sentences, shown

    if sort not in SORTS:
        raise ValueError(f"--sort {sort}: there are {', '.join(SORTS)}")
    check_out(csv_file, ".csv")
    opened = open_pair(original, quantized, revision=revision)
    with reporting("weights", as_json) as progress:
        found = compare_checkpoints(opened, layer, progress)
    in_order = ordered(found.layers, sort)
    if csv_file:
        _write(in_order, Path(csv_file))
    if as_json:
        print_json({**vars(found), "layers": in_order})
        return
    if rows := shown(in_order):
        print_table(PrintedTable(COLUMNS, [line(one) for one in rows]))
    say(*sentences(found))
    if csv_file:
        say(f"written: {csv_file}")


def _write(layers: list[LayerDiff], path: Path) -> None:
    """All ``layers`` as a CSV file."""
    from explorer.checkpoints.diff_words import flat
    from explorer.export.files import replacing

    records = [flat(layer) for layer in layers]
    with replacing(path) as partial, partial.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(records[0]) if records else [])
        writer.writeheader()
        writer.writerows(records)
