"""The command that writes a report, and checks one."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from explorer.cli.device import Device, use_device
from explorer.cli.options import TENSORS, Json, Revision, TensorName, check_out, examples, parse_schemes
from explorer.cli.output import Table, print_json, print_table, reporting

app = typer.Typer()


@app.command(
    rich_help_panel=TENSORS,
    epilog=examples(
        "report sample:mlp_up --schemes int4_group128_asym,nvfp4 --out report.html",
        "report W.safetensors --tensor w --schemes nvfp4 --pdf report.pdf --figures figures",
        "report --check report.html",
        "report W.safetensors --check report.html",
    ),
)
def report(
    file: Annotated[
        str | None, typer.Argument(help="A tensor file, a model folder, a Hub id, or sample:NAME.")
    ] = None,
    schemes: Annotated[str | None, typer.Option(help="One or two schemes, A and B.")] = None,
    tensor: TensorName = None,
    revision: Revision = None,
    element: Annotated[
        str | None, typer.Option(help="ROW,COLUMN to look into.", show_default="A's largest error")
    ] = None,
    out: Annotated[str | None, typer.Option(help="The HTML file.", show_default="report.html")] = None,
    pdf: Annotated[str | None, typer.Option(help="Print it to this file too (needs Chromium).")] = None,
    figures: Annotated[
        str | None,
        typer.Option(help="Write figures (SVG, PDF, PNG) and tables (CSV, LaTeX) to this folder."),
    ] = None,
    check: Annotated[
        str | None, typer.Option(help="Compute this report's numbers again and say which moved.")
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """What the page shows of a tensor under one or two schemes, as one HTML file that asks no network."""
    from explorer.reports import build, write
    from explorer.sources import load_matrix

    use_device(device)
    if check:
        if any((schemes, element, out, pdf, figures)):
            raise ValueError(
                "--check takes a report and, where it lies elsewhere, its tensor; nothing is written"
            )
        _check(Path(check), file, as_json)
        return
    if file is None or schemes is None:
        raise ValueError("name a tensor and --schemes, or a report to --check")
    chosen, at, out = parse_schemes(schemes), _element(element), out or "report.html"
    for path, suffix in ((out, ".html"), (pdf, ".pdf")):
        if path is not None:
            check_out(path, suffix)
    with reporting("reading", as_json, in_bytes=True) as progress:
        matrix = load_matrix(file, tensor, revision, progress=progress)
    content = build(matrix, chosen, {"file": file, "tensor": tensor, "revision": revision}, at)
    written = write(content, Path(out), Path(pdf) if pdf else None, Path(figures) if figures else None)
    if as_json:
        print_json({"written": [str(path) for path in written], "numbers": content.numbers})
        return
    for each in written:
        print(f"written: {each}")


def _element(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    try:
        row, column = (int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"expected an element as ROW,COLUMN, got {text!r}") from None
    return row, column


def _check(path: Path, file: str | None, as_json: bool) -> None:
    """Exits with 1 where the tensor or a number is another one now. ``file`` is where the tensor lies here,
    of a report that was made elsewhere."""
    from explorer.reports import as_html, build, moved
    from explorer.reports.build import sha256_of
    from explorer.reports.check import edited_tables, read_record
    from explorer.sources import load_matrix

    record = read_record(path)
    recipe = record["recipe"]
    matrix = load_matrix(file or recipe["file"], recipe.get("tensor"), recipe.get("revision"))
    same_tensor = sha256_of(matrix.values) == record["tensor_sha256"]
    if not same_tensor and not as_json:
        print("the tensor is another one than the report's (SHA-256)")
    source = {key: recipe.get(key) for key in ("file", "tensor", "revision")}
    row, column = recipe["element"]
    now = build(matrix, parse_schemes(",".join(recipe["schemes"])), source, (int(row), int(column)))
    changes = moved(record, now)
    edited = edited_tables(path.read_text(encoding="utf-8"), as_html(now)) if not changes else []
    if as_json:
        print_json({"same_tensor": same_tensor, "moved": [vars(c) for c in changes], "edited": edited})
    else:
        if edited:
            print(f"tables that show something else than these numbers give: {', '.join(edited)}")
        if changes:
            print_table(Table(("number", "in the report", "now"), [[m.name, m.said, m.now] for m in changes]))
        count = len(record["numbers"])
        print(f"{len(changes)} of {count} numbers moved" if changes else f"all {count} numbers are the same")
    if changes or edited or not same_tensor:
        raise typer.Exit(1)
