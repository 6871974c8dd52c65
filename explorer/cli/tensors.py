"""Commands about formats, schemes and one tensor."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from explorer.cli.commands import add_command
from explorer.cli.options import (
    TENSORS,
    AllSchemes,
    Device,
    Json,
    Source,
    check_suffix,
    parse_scheme,
    parse_schemes,
    use_device,
)
from explorer.cli.output import PrintedTable, counted, emit, written

if TYPE_CHECKING:
    from explorer import Format, Report

app = typer.Typer()
command = partial(add_command, app, TENSORS)
Codes = Annotated[
    bool, typer.Option("--codes", help="Read a quantized weight's codes, not the values they stand for.")
]
SCHEME = "A name from `explorer schemes`, or a scheme spelled out."


@command("formats", "formats --json")
def formats(as_json: Json = False) -> None:
    """The number formats: bits, range, and which tensor cores multiply them."""
    from explorer.formats import FORMATS

    records = [_format_record(fmt) for fmt in FORMATS.values()]
    shown = ["name", "packed_bits", "exponent", "mantissa", "max", "tiniest", "finite_values", "tensor_cores"]
    emit(as_json, records, PrintedTable(shown, [[record[key] for key in shown] for record in records]))


def _format_record(fmt: Format) -> dict[str, Any]:
    from explorer.formats import FloatFormat

    floating = fmt if isinstance(fmt, FloatFormat) else None
    return {
        "name": fmt.name,
        "label": fmt.label,
        "bits": fmt.bits,
        "packed_bits": fmt.packed_bits,
        "exponent": floating and floating.exponent,
        "mantissa": floating and floating.mantissa,
        "bias": floating and floating.bias,
        "max": fmt.max,
        "tiniest": fmt.smallest_subnormal,
        "eps": floating and floating.eps,
        "finite_values": len(fmt.levels) if fmt.bits <= 8 else None,
        "specials": floating.specials.value if floating else "every code is a finite number",
        "tensor_cores": fmt.tensor_cores,
        "note": fmt.note,
    }


@command("schemes")
def schemes(as_json: Json = False) -> None:
    """The named schemes, each in one sentence.

    The block in a name may be another one, such as int4_group48_asym; any other scheme is spelled out:
    int4~1x48~asymmetric~float16~minmax.
    """
    from explorer.core.serialize import to_json
    from explorer.schemes import SCHEMES

    records = [{**to_json(s), "describe": s.describe()} for s in SCHEMES.values()]
    rows = [(s.name, s.bits_per_element((4096, 4096)).total, s.describe()) for s in SCHEMES.values()]
    emit(as_json, records, PrintedTable(("name", "bits (4096²)", "what"), rows))


@command(
    "quantize sample:mlp_up --scheme nvfp4",
    "quantize W.safetensors --tensor w --scheme int4_group128_asym --out Q.safetensors",
    "quantize sample:mlp_up --scheme int4_group32 --layout gguf --out Q.gguf",
)
def quantize(
    source: Source,
    scheme: str = typer.Option(help=SCHEME),
    codes: Codes = False,
    out: str | None = typer.Option(None, help="Write codes and scales to this file."),
    layout: str | None = typer.Option(
        None, help="Write them as a checkpoint's: compressed-tensors, gguf, ...; else this project's."
    ),
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Quantize one tensor and report the error."""
    chosen = parse_scheme(scheme)

    from explorer.analysis.grids import grid_words
    from explorer.analysis.histograms import kl_note
    from explorer.analysis.sliced import analyse_anywhere
    from explorer.core.serialize import to_json

    _check_layout(out, layout)
    use_device(device)
    matrix = source.load(as_json, codes)
    analysis = analyse_anywhere(matrix.values, chosen)
    report, notes = analysis.report, []
    if out and layout:
        from explorer.checkpoints import write_one

        write_one(layout, analysis.q, Path(out), matrix.name or "tensor")
    elif out:
        analysis.q.save(out, matrix.name or "tensor")
    if shortened := chosen.shortened(analysis.q.shape):
        notes.append(f"{chosen.name}: {shortened}")
    if few := kl_note(matrix.values.numel()):
        notes.append(f"kl: {few}")
    if report.max_error and (grid := grid_words(matrix.values)):
        notes.append(grid)
    if report.zero_blocks:
        notes.append(f"{report.zero_blocks:,} blocks that hold values became zero")
    measured = {**to_json(report), "total_bits": report.bits.total}
    if notes:
        measured["note"] = "; ".join(notes)
    emit(
        as_json,
        {"tensor": matrix.description, "scheme": chosen, "report": measured},
        matrix.description,
        chosen.describe(),
        PrintedTable(("", "value"), _report_items(report)),
        *notes,
        written(out),
    )


def _check_layout(out: str | None, layout: str | None) -> None:
    """``ValueError`` unless ``--out`` ends as files of the layout do."""
    suffix = ".safetensors"
    if layout is not None:
        from explorer.checkpoints.targets import export_of

        suffix = export_of(layout).suffix
        if out is None:
            raise ValueError(f"--layout {layout} needs --out FILE{suffix}")
    check_suffix("--out", out, suffix)


def _report_items(report: Report) -> list[tuple[str, Any]]:
    from explorer.core.serialize import to_json

    items: list[tuple[str, Any]] = []
    for key, value in to_json(report).items():
        if isinstance(value, dict):
            items += [(f"bits.{k}", v) for k, v in value.items()]
        elif key in ("clipped", "zeroed"):
            items.append((f"{key} %", 100 * value))
        else:
            items.append((key, value))
    return [*items, ("bits.total", report.bits.total)]


@command(
    "compare sample:mlp_up --schemes nvfp4,mxfp4,int4_group128_asym",
    "compare path/to/model --tensor encoder.layer.0.output.dense.weight --json",
)
def compare(
    source: Source,
    codes: Codes = False,
    schemes: AllSchemes = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Many schemes on one tensor: size, error, and which of them no other beats in both."""
    chosen = parse_schemes(schemes)

    from explorer.analysis.schemes import compare_schemes, comparison_record, mark_frontier

    use_device(device)
    matrix = source.load(as_json, codes)
    compared = compare_schemes(matrix.values, chosen)
    marked = mark_frontier(counted("schemes", compared, len(chosen), as_json))
    columns = ("scheme", "bits", "sqnr_db", "max_error", "clipped %", "zeroed %", "frontier")
    lines = [
        (
            row.scheme.name,
            row.report.bits.total,
            row.report.sqnr_db,
            row.report.max_error,
            100 * row.report.clipped,
            100 * row.report.zeroed,
            "*" if row.on_frontier else "",
        )
        for row in marked
    ]
    shape = matrix.values.shape[0], matrix.values.shape[1]
    shortened = {s.name: said for s in chosen if (said := s.shortened(shape))}
    emit(
        as_json,
        [comparison_record(row) for row in marked],
        matrix.description,
        PrintedTable(columns, lines),
        f"{', '.join(shortened)}: {next(iter(shortened.values()))}" if shortened else None,
    )


@command(
    "picture photo.jpg --schemes int4_tensor,int4_group32,mxfp4,nvfp4 --out photo.html",
    "picture sample:portrait --schemes mxfp4,nvfp4 --at 180 224 --out portrait.html",
)
def picture(
    source: Source,
    schemes: str = typer.Option(help="Up to five schemes, separated by commas."),
    out: str = typer.Option(help="Write the picture to this .html file."),
    at: tuple[int, int] | None = typer.Option(
        None, help="Row and column to enlarge around.", show_default="the largest error of the first scheme"
    ),
    codes: Codes = False,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """A photograph, or any tensor, drawn before and after schemes, with blocks outlined in an enlarged part.

    Values from 0 to 1 are drawn in grey, others from blue (negative) to red.
    """
    from explorer.analysis.sliced import analyse_anywhere
    from explorer.analysis.tensor import Side
    from explorer.export.files import replacing
    from explorer.figures.picture import MOST, Cut, Shades, original_panel, panel_of, picture_page

    chosen = parse_schemes(schemes)
    if len(chosen) > MOST:
        raise ValueError(f"--schemes lists {len(chosen)} schemes; up to {MOST} are drawn")
    check_suffix("--out", out, ".html")
    use_device(device)
    matrix = source.load(as_json, codes)
    x = matrix.values
    sides = [Side(scheme.label, analyse_anywhere(x, scheme)) for scheme in chosen]
    cut = Cut.around(at or sides[0].analysis.report.max_error_at, (x.shape[0], x.shape[1]))
    shades = Shades.of(x)
    panels = [original_panel(x, cut, shades), *(panel_of(side, cut, shades) for side in sides)]
    with replacing(out) as partial_file:
        partial_file.write_text(picture_page(matrix.name or source.file, *panels), encoding="utf-8")
    reports = [side.analysis.report for side in sides]
    rows = [(s.name, r.bits.total, r.sqnr_db) for s, r in zip(chosen, reports, strict=True)]
    records = [{"scheme": name, "total_bits": bits, "sqnr_db": sqnr} for name, bits, sqnr in rows]
    table = PrintedTable(("scheme", "bits", "sqnr_db"), rows)
    emit(as_json, records, matrix.description, table, written(out))


@command("calibrate sample:mlp_up_in --scheme int8_tensor", "calibrate sample:mlp_up --own 0.5")
def calibrate(
    source: Source,
    codes: Codes = False,
    scheme: str = typer.Option("int8_tensor", help=SCHEME),
    own: float | None = typer.Option(None, help="Also a range of this share (0 … 1) of the largest value."),
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Compare the ranges that the calibrators choose for a tensor with one scale, and their errors."""
    from explorer.analysis.calibration import compare_calibrators

    chosen = parse_scheme(scheme)
    if own is not None and not 0 < own <= 1:
        raise ValueError("--own is a share of the largest value, above 0 and at most 1")
    use_device(device)
    report = compare_calibrators(source.load(as_json, codes).values, chosen, own)
    columns = ("method", "low", "high", "SQNR dB", "clipped %", "max error")
    rows = [
        (c.label, c.low, c.high, c.report.sqnr_db, 100 * c.report.clipped, c.report.max_error)
        for c in report.choices
    ]
    emit(as_json, report.choices, PrintedTable(columns, rows))
