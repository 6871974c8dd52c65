"""``explorer speed``: what products of one layer take on the recorded GPU."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from explorer.cli.options import MEASURING, Json, examples, parse_schemes, sizes
from explorer.cli.output import PrintedTable, emit, say

if TYPE_CHECKING:
    from explorer.products.shape_times import ShapeTime

app = typer.Typer()
USUAL = "bf16,int8_row,fp8_e4m3_row,nvfp4,mxfp4,int4_group128"


@app.command(
    rich_help_panel=MEASURING,
    epilog=examples(
        "speed 14336x4096 --schemes nvfp4,mxfp4,int4_group128_asym", "speed 4096x4096 --tokens 1,8,256"
    ),
)
def speed(
    shape: Annotated[str, typer.Argument(help="N x K of the weight, e.g. 4096x11008.")],
    schemes: Annotated[str, typer.Option(help="Comma-separated schemes.")] = USUAL,
    tokens: Annotated[str, typer.Option(help="Comma-separated numbers of tokens (M).")] = "1,64,4096",
    as_json: Json = False,
) -> None:
    """The time of a weight's product on the recorded GPU, by scheme: measured, or modelled with its error."""
    from explorer.products.shape_times import shape_times
    from explorer.recordings.gemm import recorded_gemms

    n, k = sizes(shape, 2, "N x K", of="SHAPE")
    counts = [_count(text) for text in tokens.split(",")]
    rows = [
        (scheme.name, time) for scheme in parse_schemes(schemes) for time in shape_times(scheme, n, k, counts)
    ]
    records = [_record(name, time) for name, time in rows]
    cells = [[*(record[key] for key in list(record)[:5]), record["how"]] for record in records]
    if not as_json:
        say(f"{recorded_gemms().sentence}.")
    emit(as_json, records, PrintedTable(("scheme", "tokens", "µs", "product", "kernel", "how"), cells))


def _record(scheme: str, time: ShapeTime) -> dict[str, object]:
    micro = None if time.microseconds is None else round(time.microseconds, 2)
    return {
        "scheme": scheme,
        "tokens": time.shape[0],
        "microseconds": micro,
        "product": time.product,
        "kernel": time.kernel,
        "how": time.how,
        "kind": time.kind,
        "error": time.error,
        "extrapolated": time.extrapolated,
        "gpu": time.gpu,
        "date": time.date,
    }


def _count(text: str) -> int:
    if not text.strip().isdigit() or int(text) < 1:
        raise ValueError(f"--tokens: {text.strip()!r} is no number of tokens; give some such as 1,64,4096")
    return int(text)
