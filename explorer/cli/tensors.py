"""Commands about formats, schemes and one tensor."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from explorer.cli.device import Device, use_device
from explorer.cli.options import (
    TENSORS,
    AllSchemes,
    Codes,
    File,
    Json,
    Revision,
    TensorName,
    check_file,
    check_out,
    examples,
    parse_scheme,
    parse_schemes,
)
from explorer.cli.output import PrintedTable, counted, emit, print_json, print_table, reporting, say

if TYPE_CHECKING:
    from explorer import Format, Report, Scheme
    from explorer.sources.tensors import Matrix

app = typer.Typer()


@app.command(rich_help_panel=TENSORS, epilog=examples("formats", "formats --json"))
def formats(as_json: Json = False) -> None:
    """The number formats: bits, range, and which tensor cores multiply them."""
    from explorer.formats import FORMATS

    records = [_format_record(fmt) for fmt in FORMATS.values()]
    columns = (
        "name",
        "packed_bits",
        "exponent",
        "mantissa",
        "max",
        "tiniest",
        "finite_values",
        "tensor_cores",
    )
    emit(as_json, records, PrintedTable(columns, [[record[key] for key in columns] for record in records]))


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


@app.command(rich_help_panel=TENSORS, epilog=examples("schemes"))
def schemes(as_json: Json = False) -> None:
    """The named schemes, each in one sentence.

    The block in a name may be another one, such as int4_group48_asym; any other scheme is spelled out:
    int4~1x48~asymmetric~float16~minmax.
    """
    from explorer.schemes import SCHEMES

    records = [{**_scheme_record(s), "describe": s.describe()} for s in SCHEMES.values()]
    rows = [(s.name, s.bits_per_element((4096, 4096)).total, s.describe()) for s in SCHEMES.values()]
    emit(as_json, records, PrintedTable(("name", "bits (4096²)", "what"), rows))


def _scheme_record(scheme: Scheme) -> dict[str, Any]:
    """The scheme's fields; ``refit`` is the name that programs know ``least_squares_scale`` by."""
    from explorer.core.serialize import to_json

    return {**to_json(scheme), "refit": scheme.least_squares_scale}


@app.command(
    rich_help_panel=TENSORS,
    epilog=examples(
        "quantize sample:mlp_up --scheme nvfp4",
        "quantize W.safetensors --tensor w --scheme int4_group128_asym --out Q.safetensors",
        "quantize sample:mlp_up --scheme int4_group32 --layout gguf --out Q.gguf",
    ),
)
def quantize(
    file: File,
    scheme: Annotated[str, typer.Option(help="A name from `explorer schemes`, or a scheme spelled out.")],
    tensor: TensorName = None,
    codes: Codes = False,
    revision: Revision = None,
    out: Annotated[str | None, typer.Option(help="Write codes and scales to this file.")] = None,
    layout: Annotated[
        str | None,
        typer.Option(
            help="Write them as a checkpoint's: compressed-tensors, gguf, ...; else this project's."
        ),
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Quantize one tensor and report the error."""
    check_file(file)
    chosen = parse_scheme(scheme)

    from explorer.analysis.grids import grid_words
    from explorer.analysis.histograms import kl_note
    from explorer.analysis.sliced import analyse_anywhere
    from explorer.core.serialize import to_json

    _check_file(out, layout)
    use_device(device)
    matrix = _load(file, tensor, revision, codes, as_json)
    analysis = analyse_anywhere(matrix.values, chosen)
    report = analysis.report
    if out and layout:
        from explorer.checkpoints import write_one

        write_one(layout, analysis.q, Path(out), matrix.name or "tensor")
    elif out:
        analysis.q.save(out, matrix.name or "tensor")
    shortened, notes = chosen.shortened(analysis.q.shape), []
    if shortened:
        notes.append(f"{chosen.name}: {shortened}")
    if few := kl_note(matrix.values.numel()):
        notes.append(f"kl: {few}")
    if report.max_error and (grid := grid_words(matrix.values)):
        notes.append(grid)
    if report.zero_blocks:
        notes.append(f"{report.zero_blocks:,} blocks that hold values became zero")
    if as_json:
        measured = {**to_json(report), "total_bits": report.bits.total}
        if notes:
            measured["note"] = "; ".join(notes)
        print_json({"tensor": matrix.description, "scheme": _scheme_record(chosen), "report": measured})
        return
    say(matrix.description)
    say(chosen.describe())
    print_table(PrintedTable(("", "value"), _report_items(report)))
    for note in notes:
        say(note)
    if out:
        say(f"written: {out}")


def _check_file(out: str | None, layout: str | None) -> None:
    """``ValueError`` unless ``--out`` can be written and ends as files of the layout do."""
    if layout is None:
        check_out(out)
        return
    from explorer.checkpoints.targets import export_of

    suffix = export_of(layout).suffix
    if out is None:
        raise ValueError(f"--layout {layout} needs --out FILE{suffix}")
    check_out(out, suffix)


def _load(file: str, tensor: str | None, revision: str | None, codes: bool, as_json: bool) -> Matrix:
    from explorer.sources import load_matrix

    with reporting("reading", as_json, in_bytes=True) as progress:
        return load_matrix(file, tensor, revision, progress=progress, codes=codes)


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


@app.command(
    rich_help_panel=TENSORS,
    epilog=examples(
        "compare sample:mlp_up --schemes nvfp4,mxfp4,int4_group128_asym",
        "compare path/to/model --tensor encoder.layer.0.output.dense.weight --json",
    ),
)
def compare(
    file: File,
    tensor: TensorName = None,
    codes: Codes = False,
    revision: Revision = None,
    schemes: AllSchemes = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Many schemes on one tensor: size, error, and which of them no other beats in both."""
    check_file(file)
    chosen = parse_schemes(schemes)

    from explorer.analysis.schemes import compare_schemes, comparison_record, mark_frontier

    use_device(device)
    matrix = _load(file, tensor, revision, codes, as_json)
    rows = counted("schemes", compare_schemes(matrix.values, chosen), len(chosen), as_json)
    marked = mark_frontier(rows)
    if not as_json:
        say(matrix.description)
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
    emit(as_json, [comparison_record(row) for row in marked], PrintedTable(columns, lines))
    shape = matrix.values.shape[0], matrix.values.shape[1]
    names = [(s.name, words) for s in chosen if (words := s.shortened(shape))]
    if names and not as_json:
        say(f"{', '.join(name for name, _ in names)}: {names[0][1]}")


@app.command(
    rich_help_panel=TENSORS,
    epilog=examples(
        "picture photo.jpg --schemes int4_tensor,int4_group32,mxfp4,nvfp4 --out photo.html",
        "picture sample:portrait --schemes mxfp4,nvfp4 --at 180 224 --out portrait.html",
    ),
)
def picture(
    file: File,
    schemes: Annotated[str, typer.Option(help="Up to five schemes, separated by commas.")],
    out: Annotated[str, typer.Option(help="Write the picture to this .html file.")],
    at: Annotated[
        tuple[int, int] | None,
        typer.Option(
            help="Row and column to enlarge around.", show_default="the largest error of the first scheme"
        ),
    ] = None,
    tensor: TensorName = None,
    codes: Codes = False,
    revision: Revision = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """A photograph, or any tensor, drawn before and after schemes, with blocks outlined in an enlarged part.

    Values from 0 to 1 are drawn in grey, others from blue (negative) to red.
    """
    check_file(file)

    from explorer.analysis.sliced import analyse_anywhere
    from explorer.analysis.tensor import Side
    from explorer.figures.picture import MOST, Cut, Shades, original_panel, panel_of, picture_page

    chosen = parse_schemes(schemes)
    if len(chosen) > MOST:
        raise ValueError(f"--schemes lists {len(chosen)} schemes; up to {MOST} are drawn")
    check_out(out, ".html")
    use_device(device)
    matrix = _load(file, tensor, revision, codes, as_json)
    x = matrix.values
    sides = [Side(scheme.label, analyse_anywhere(x, scheme)) for scheme in chosen]
    cut = Cut.around(at or sides[0].analysis.report.max_error_at, (x.shape[0], x.shape[1]))
    shades = Shades.of(x)
    panels = [original_panel(x, cut, shades), *(panel_of(side, cut, shades) for side in sides)]
    from explorer.export.files import replacing

    with replacing(out) as partial:
        partial.write_text(picture_page(matrix.name or file, *panels), encoding="utf-8")
    rows = [(s.name, side.analysis.report) for s, side in zip(chosen, sides, strict=True)]
    if not as_json:
        say(matrix.description)
    emit(
        as_json,
        [{"scheme": name, "total_bits": r.bits.total, "sqnr_db": r.sqnr_db} for name, r in rows],
        PrintedTable(("scheme", "bits", "sqnr_db"), [(name, r.bits.total, r.sqnr_db) for name, r in rows]),
    )
    if not as_json:
        say(f"written: {out}")


@app.command(
    rich_help_panel=TENSORS,
    epilog=examples("calibrate sample:mlp_up_in --scheme int8_tensor", "calibrate sample:mlp_up --own 0.5"),
)
def calibrate(
    file: File,
    tensor: TensorName = None,
    codes: Codes = False,
    revision: Revision = None,
    scheme: Annotated[
        str, typer.Option(help="A name from `explorer schemes`, or a scheme spelled out.")
    ] = "int8_tensor",
    own: Annotated[
        float | None, typer.Option(help="Also a range of this share (0 … 1) of the largest value.")
    ] = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Compare the ranges that the calibrators choose for a tensor with one scale, and their errors."""
    check_file(file)

    from explorer.analysis.calibration import compare_calibrators

    chosen = parse_scheme(scheme)
    if own is not None and not 0 < own <= 1:
        raise ValueError("--own is a share of the largest value, above 0 and at most 1")
    use_device(device)
    report = compare_calibrators(_load(file, tensor, revision, codes, as_json).values, chosen, own)
    columns = ("method", "low", "high", "SQNR dB", "clipped %", "max error")
    rows = [
        (c.label, c.low, c.high, c.report.sqnr_db, 100 * c.report.clipped, c.report.max_error)
        for c in report.choices
    ]
    emit(as_json, report.choices, PrintedTable(columns, rows))
