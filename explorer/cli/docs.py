"""The command that writes the measured pages of ``docs/`` from ``assets/measurements/``."""

from __future__ import annotations

from typing import Annotated

import typer

from explorer.cli.options import MEASURING, Json, examples
from explorer.cli.output import print_json, say

app = typer.Typer()


@app.command(rich_help_panel=MEASURING, epilog=examples("docs", "docs --check"))
def docs(
    check: Annotated[
        bool, typer.Option("--check", help="Write nothing; exit code 1 if a page would change.")
    ] = False,
    record: Annotated[
        bool, typer.Option("--record", help="First run and record whole models and training (minutes).")
    ] = False,
    model: Annotated[
        str | None,
        typer.Option(
            help="Folder or Hub id, for --record.", show_default="sentence-transformers/all-MiniLM-L6-v2"
        ),
    ] = None,
    causal: Annotated[
        str | None,
        typer.Option(help="Folder or Hub id of a causal model to run recipes of, and record (minutes)."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Write the measured pages of docs/ from the recordings in assets/measurements/."""
    from explorer.bench.docs import check_docs, docs_folder, record_runs, write_docs
    from explorer.bench.recipes import record_causal
    from explorer.models.evaluate import MODEL

    folder = docs_folder()
    if record:
        for path in record_runs(model or MODEL):
            say(f"written: {path}", error=True)
    if causal:
        say(f"written: {record_causal(causal)}", error=True)
    if not check:
        written = write_docs(folder)
        if as_json:
            print_json({"written": [str(path) for path in written]})
        for path in [] if as_json else written:
            say(f"written: {path}")
        return
    stale = [path.name for path in check_docs(folder)]
    if as_json:
        print_json({"stale": stale})
    elif not stale:
        say("docs/ says what the recordings say")
    if stale:
        say(f"docs/ is behind its recordings: {', '.join(stale)}; run `explorer docs`", error=True)
        raise typer.Exit(1)
