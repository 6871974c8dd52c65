"""The commands that write a report, and check one."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer
from typer.core import TyperGroup

from explorer import words
from explorer.checkpoints.inputs import INPUTS
from explorer.cli.device import Device, use_device
from explorer.cli.options import (
    SOURCES,
    TENSORS,
    Activations,
    Json,
    Revision,
    TensorName,
    check_out,
    examples,
    sizes,
    split,
)
from explorer.cli.output import (
    hide_bars_of_transformers,
    print_json,
    reporting,
    say,
)

if TYPE_CHECKING:
    from explorer.methods.recipe import Recipe
    from explorer.reports import Content

DEFAULT = "tensor"


class OfATensor(TyperGroup):
    """``report W.npy`` is ``report tensor W.npy``: only the other kinds of reports have to be named."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """The arguments, with the command that is left out."""
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, list(args) if named else [DEFAULT, *args])


app = typer.Typer()
kinds = typer.Typer(
    cls=OfATensor,
    help="A report as one HTML file that asks no network: of a tensor, or of what is named below. "
    f"`report FILE` is short for `report {DEFAULT} FILE`; its options: `report {DEFAULT} --help`.",
    epilog=examples(
        "report sample:mlp_up --schemes int4_group128_asym,nvfp4 --out report.html",
        "report survey all-MiniLM-L6-v2 --bits 4.5 --pdf report.pdf",
    ),
)
app.add_typer(kinds, name="report", rich_help_panel=TENSORS)

ROUNDED = 0.005
"""Bits per weight: tolerance for a budget that was rounded to two decimals."""
Out = Annotated[str | None, typer.Option(help="The HTML file.", show_default="report.html")]
Pdf = Annotated[str | None, typer.Option(help="Print it to this file too (needs Chromium).")]
Figures = Annotated[
    str | None,
    typer.Option(help="Write figures (SVG, PDF, PNG) and tables (CSV, LaTeX) to this folder."),
]
Timings = Annotated[
    str | None,
    typer.Option(help="Products timed on your machine: the JSON of `bench gemm --json` or of the page."),
]


@kinds.command(
    DEFAULT,
    epilog=examples(
        "report sample:mlp_up --schemes int4_group128_asym,nvfp4 --out report.html",
        "report W.safetensors --tensor w --schemes nvfp4 --pdf report.pdf --figures figures",
        "report sample:mlp_up --schemes int4_group128,int4_group128+gptq --inputs sample:mlp_up_in "
        "--methods rtn,gptq,awq",
    ),
)
def tensor(
    file: Annotated[str, typer.Argument(help=f"{SOURCES[0].upper()}{SOURCES[1:]}.")],
    schemes: Annotated[
        str, typer.Option(help="One or two schemes, A and B; SCHEME+METHOD for a method's result.")
    ],
    tensor: TensorName = None,
    revision: Revision = None,
    element: Annotated[
        str | None, typer.Option(help="ROW,COLUMN to look into.", show_default="A's largest error")
    ] = None,
    own: Annotated[
        float | None, typer.Option(help="A range of your own, as a share (0 ... 1) of min-max.")
    ] = None,
    inputs: Annotated[
        str | None, typer.Option(help="The layer's inputs (tokens × K), for methods; half are held out.")
    ] = None,
    inputs_tensor: Annotated[
        str | None, typer.Option(help="Which tensor of the inputs, if there are several.")
    ] = None,
    methods: Annotated[
        str | None, typer.Option(help="Methods to compare on the inputs, comma-separated, e.g. rtn,gptq.")
    ] = None,
    method_schemes: Annotated[
        str | None, typer.Option(help="Schemes to compare them under.", show_default="those of A and B")
    ] = None,
    activations: Activations = None,
    timings: Timings = None,
    out: Out = None,
    pdf: Pdf = None,
    figures: Figures = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Report on a tensor under one or two schemes, with the content of the page."""
    from explorer.reports.tensor import Methods, More, tensor_report
    from explorer.sources import load_matrix

    use_device(device)
    recipes, at = _recipes(schemes), _element(element)
    if (methods or any(recipe.method for recipe in recipes)) and not inputs:
        raise ValueError("methods need the layer's inputs: name them by --inputs")
    tried = None
    if methods is not None:
        under = _recipes(method_schemes) if method_schemes else recipes
        own_schemes = tuple(dict.fromkeys(str(recipe.scheme) for recipe in under))
        tried = Methods(_methods(methods), own_schemes, _scheme(activations))
    files = _files(out, pdf, figures)
    timed = _timings(timings)
    with reporting("reading", as_json, in_bytes=True) as progress:
        matrix = load_matrix(file, tensor, revision, progress=progress)
    x = load_matrix(inputs, inputs_tensor).values if inputs else None
    source = {
        "file": file,
        "tensor": tensor,
        "revision": revision,
        "inputs": inputs,
        "inputs_tensor": inputs_tensor,
    }
    more = More(element=at, own=own, inputs=x, methods=tried, timings=timed)
    with reporting("sections", as_json) as progress:
        content = tensor_report(matrix, recipes, source, more, progress)
    _write(content, files, as_json)


@kinds.command(
    epilog=examples(
        "report survey all-MiniLM-L6-v2 --bits 4.5 --out report.html",
        "report survey model.jsonl --bits 4 --for compressed-tensors --fuse --check-model --pdf report.pdf",
    )
)
def survey(
    file: Annotated[
        str, typer.Argument(metavar="SURVEY", help="A file of `explorer survey`, or a recorded one's name.")
    ],
    bits: Annotated[
        float | None,
        typer.Option(help="The budget: mean bits per weight, scales counted.", show_default="4.5"),
    ] = None,
    time: Annotated[
        str | None,
        typer.Option(help="Or the time of all linear layers in one step, such as 12ms, as recorded."),
    ] = None,
    batch: Annotated[
        int | None, typer.Option(min=1, help="With --time: tokens of the step.", show_default="1")
    ] = None,
    signal: Annotated[
        str, typer.Option(help="What layers are ranked by.", show_default="the survey's best signal")
    ] = "",
    target: Annotated[
        str, typer.Option("--for", help="Only schemes that a checkpoint format carries together.")
    ] = "",
    keep: Annotated[
        str | None, typer.Option(help="Layers left as they are: parts of names or patterns, comma-separated.")
    ] = None,
    fuse: Annotated[
        bool, typer.Option("--fuse", help="One scheme for query, key and value, and for gate and up.")
    ] = False,
    inputs: Annotated[
        str,
        typer.Option(
            help=f"Also quantize the layers' inputs, by {', '.join(INPUTS)}.", show_default="not quantized"
        ),
    ] = "",
    check_model: Annotated[
        bool, typer.Option("--check-model", help="Run the model that the recipe makes: its true loss.")
    ] = False,
    model: Annotated[
        str | None, typer.Option(help="Folder or Hub id.", show_default="the survey's own")
    ] = None,
    out: Out = None,
    pdf: Pdf = None,
    figures: Figures = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Report on a model's survey: sensitive layers, and the recipe for a budget of bits or time."""
    hide_bars_of_transformers(as_json)
    from explorer.models.files import check_weights
    from explorer.reports.survey import USUAL_BITS, Asked, bought, find_survey, survey_report
    from explorer.survey.check import check_recipe
    from explorer.survey.times import seconds_of

    if model and not check_model:
        raise ValueError("--model is the model that --check-model runs")
    if bits is not None and time is not None:
        raise ValueError("name one budget: --bits or --time")
    if batch is not None and time is None:
        raise ValueError("--batch is of a budget of time: give --time")
    use_device(device)
    files = _files(out, pdf, figures)
    asked = Asked(
        USUAL_BITS if bits is None else bits,
        signal,
        target,
        tuple(split(keep)) if keep else (),
        fuse,
        inputs,
        seconds_of(time) if time is not None else None,
        batch or 1 if time is not None else None,
    )
    one, check = bought(find_survey(file), asked), None
    if check_model:
        from explorer.models.capture import load_model

        place = model or one.recipe.model
        check_weights(one.recipe, place)
        loaded = load_model(place, one.recipe.revision, head=True)
        with reporting("models", as_json) as progress:
            check = check_recipe(one.recipe, loaded, survey=one.survey, progress=progress)
    content = survey_report(file, one, check, model)
    if time is not None and content.numbers["choice.seconds"] > seconds_of(time) * (1 + ROUNDED):
        shortest = words.duration(content.numbers["choice.seconds"])
        raise ValueError(f"{time} is less than the linear layers take by these schemes: {shortest}")
    if bits is not None and content.numbers["choice.bits"] > bits + ROUNDED:
        from explorer.survey.budget import too_few_bits

        least = content.numbers["choice.bits"]
        raise ValueError(too_few_bits(bits, least))
    _write(content, files, as_json)


@kinds.command(
    epilog=examples(
        "report speed --shape 1x8192x8192 --schemes nvfp4,int4_group128 --out report.html",
        "report speed --timings timings.json --out report.html",
    )
)
def speed(
    shape: Annotated[str | None, typer.Option(help="M x N x K.", show_default="one token")] = None,
    schemes: Annotated[str | None, typer.Option(help="One or two schemes to mark, A and B.")] = None,
    timings: Timings = None,
    out: Out = None,
    pdf: Pdf = None,
    figures: Figures = None,
    as_json: Json = False,
) -> None:
    """Matrix products at one shape: recorded on a named GPU, or timed on your machine."""
    from explorer.reports.speed import speed_report

    recipes, files = _recipes(schemes) if schemes else [], _files(out, pdf, figures)
    at = sizes(shape, 3, "M x N x K") if shape else None
    _write(speed_report(_timings(timings), at, recipes), files, as_json)


@kinds.command(epilog=examples("report training --widths 8,4,ternary --seeds 1 --out report.html"))
def training(
    widths: Annotated[
        str | None, typer.Option(help="Comma-separated: 8 ... 2, ternary, binary.", show_default="all")
    ] = None,
    seeds: Annotated[int, typer.Option(help="Networks of each kind.")] = 3,
    epochs: Annotated[int, typer.Option(help="Epochs of the float32 network.")] = 20,
    again: Annotated[int, typer.Option(help="Epochs of training on.")] = 8,
    activations: Activations = None,
    out: Out = None,
    pdf: Pdf = None,
    figures: Figures = None,
    as_json: Json = False,
) -> None:
    """Accuracy against bits on images of digits, before and after training through the rounding."""
    from explorer.reports.training import Settings, trained, training_report
    from explorer.training.digits import WIDTHS

    files = _files(out, pdf, figures)
    names = tuple(split(widths)) if widths is not None else tuple(WIDTHS)
    settings = Settings(names, seeds, epochs, again, _scheme(activations))
    with reporting("networks", as_json) as progress:
        results = trained(settings, progress)
    _write(training_report(settings, results), files, as_json)


Files = tuple[Path, Path | None, Path | None]
"""The HTML file, and where they were asked for the print and the folder of figures and tables."""


def _files(out: str | None, pdf: str | None, figures: str | None) -> Files:
    """``ValueError`` before any work if one of them cannot be written."""
    from explorer.reports.write import check_printer

    out = out or "report.html"
    for path, suffix in ((out, ".html"), (pdf, ".pdf")):
        if path is not None:
            check_out(path, suffix)
    if pdf or figures:
        check_printer()
    return Path(out), Path(pdf) if pdf else None, Path(figures) if figures else None


def _write(content: Content, files: Files, as_json: bool) -> None:
    from explorer.reports import write

    with reporting("files", as_json) as progress:
        written = write(content, *files, progress)
    if as_json:
        print_json({"written": [str(path) for path in written], "numbers": content.numbers})
        return
    for each in written:
        say(f"written: {each}")


def _recipes(texts: str) -> list[Recipe]:
    from explorer.methods.recipe import Recipe

    return [Recipe.parse(text) for text in split(texts)]


def _methods(text: str) -> tuple[str, ...]:
    """``ValueError`` for a name that no method has."""
    from explorer.methods import names_in

    names = tuple(split(text))
    for name in names:
        names_in(name)
    return names


def _scheme(text: str | None) -> str:
    """A scheme's canonical text, "" for none."""
    from explorer.schemes import Scheme

    return str(Scheme.parse(text)) if text else ""


def _timings(path: str | None):  # type: ignore[no-untyped-def]  # a recording, imported where it is read
    """Timings in a file; None of none."""
    from explorer.recordings.gemm import gemms_of_text

    try:
        return None if path is None else gemms_of_text(Path(path).read_bytes())
    except ValueError as error:
        raise ValueError(f"--timings {path}: {error}") from error


def _element(text: str | None) -> tuple[int, int] | None:
    if text is None:
        return None
    try:
        row, column = (int(part) for part in text.split(","))
    except ValueError:
        raise ValueError(f"expected an element as ROW,COLUMN, got {text!r}") from None
    return row, column
