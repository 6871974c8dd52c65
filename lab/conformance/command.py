"""The command that compares codes and scales with those of other implementations."""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli.commands import examples_of
from explorer.cli.options import Json, split
from explorer.cli.output import PrintedTable, counted, emit, say

if TYPE_CHECKING:
    from lab.conformance.compare import Conformance

app = typer.Typer()
examples = partial(examples_of, "python -m lab")


@app.command(
    epilog=examples_of(
        "python -m lab",
        "conformance",
        "conformance --packages gguf,bitsandbytes --json",
        "conformance --full",
    ),
)
def conformance(
    packages: Annotated[
        str | None, typer.Option(help="Comma-separated packages to compare with.", show_default="all")
    ] = None,
    full: Annotated[
        bool, typer.Option("--full", help="Also on all linear layers of a model (two minutes).")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder or Hub id, for --full.", show_default="sentence-transformers/all-MiniLM-L6-v2"
        ),
    ] = None,
    record: Annotated[
        bool, typer.Option("--record", help="With --full: write the results to assets/measurements/.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Compare codes and scales with torchao, compressed-tensors, bitsandbytes, gguf, ml_dtypes and gfloat.

    Exit code 1 if a row of the table is equal where it is said to differ, differs where it is said to be
    equal, or differs by more than is said.
    """
    from explorer.core.serialize import to_json
    from explorer.models.evaluate import MODEL
    from lab.conformance.cases import model_cases, sample_cases
    from lab.conformance.compare import run
    from lab.conformance.compared import rows_of
    from lab.conformance.outside import PACKAGES

    if record and (packages or not full):
        raise ValueError("--record writes the whole table: give --full, and no --packages")
    rows = rows_of(split(packages) if packages else list(PACKAGES))
    cases = [*sample_cases().items(), *(model_cases(model or MODEL) if full else ())]
    results = counted("rows", run(rows, cases), len(rows), as_json)
    if record:
        _record(results, model or MODEL)
    emit(as_json, [to_json(r) | {"verdict": r.verdict} for r in results], _table(results))
    surprises = [f"{r.name}, {r.package} {r.function}: {text}" for r in results for text in r.surprises]
    if surprises:
        say(*surprises, error=True)
        raise typer.Exit(1)


def _record(results: Sequence[Conformance], model: str) -> None:
    from lab.conformance.records import record_conformance

    for path in record_conformance(results, model):
        say(f"written: {path}", error=True)


def _table(results: Sequence[Conformance]) -> PrintedTable:
    described = ("scheme", "convention", "package", "function", "verdict")
    rows = []
    for r in results:
        t = r.total
        counts = (t.codes, t.different_codes, t.scales, t.different_scales, t.values, t.different_values)
        rows.append((r.name, r.convention, f"{r.package} {r.version}", r.function, r.verdict, *counts))
    columns = ("codes", "differ", "scales", "differ", "decoded values", "differ")
    return PrintedTable((*described, *columns), rows)
