"""The commands that write a report."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer
from typer.core import TyperGroup

from explorer import words
from explorer.cli.commands import add_command, examples_of
from explorer.cli.options import (
    TENSORS,
    Activations,
    Device,
    Json,
    RecipeLimits,
    Source,
    check_suffix,
    listed,
    parse_scheme,
    sizes,
    split,
    use_device,
)
from explorer.cli.output import emit, hide_bars_of_transformers, reporting, written

if TYPE_CHECKING:
    from explorer.methods.recipe import Recipe
    from explorer.recordings.files import Recording
    from explorer.recordings.gemm import GemmTiming
    from explorer.reports import Content
    from explorer.reports.survey import Asked
    from explorer.reports.tensor import Methods

DEFAULT = "tensor"


class OfATensor(TyperGroup):
    """A group in which ``report W.npy`` is ``report tensor W.npy``: only other kinds have to be named."""

    def parse_args(self, ctx: typer.Context, args: list[str]) -> list[str]:  # type: ignore[override]
        """Insert the omitted command "tensor"."""
        named = bool(args) and (args[0] in self.commands or args[0] in ctx.help_option_names)
        return super().parse_args(ctx, list(args) if named else [DEFAULT, *args])


app = typer.Typer()
kinds = typer.Typer(
    cls=OfATensor,
    help="A report as one HTML file that needs no network: of a tensor, or of what is named below. "
    f"`report FILE` is short for `report {DEFAULT} FILE`; its options: `report {DEFAULT} --help`.",
    epilog=examples_of(
        "explorer",
        "report sample:mlp_up --schemes int4_group128_asym,nvfp4 --out report.html",
        "report survey all-MiniLM-L6-v2 --bits 4.5 --pdf report.pdf",
    ),
)
app.add_typer(kinds, name="report", rich_help_panel=TENSORS)
command = partial(add_command, kinds, None)

ROUNDED = 0.005
"""Bits per weight: tolerance for a budget that was rounded to two decimals."""
TIMINGS = typer.Option(
    None, help="Products timed on your machine: the JSON of `bench gemm --record-to` or of the page."
)


@dataclass(frozen=True)
class ReportFiles:
    """The files that a report is written to."""

    out: str = typer.Option("report.html", help="The HTML file.")
    pdf: str | None = typer.Option(None, help="Print it to this file too (needs Chromium).")
    figures: str | None = typer.Option(
        None, help="Write figures (SVG, PDF, PNG) and tables (CSV, JSON, LaTeX) to this folder."
    )

    def __post_init__(self) -> None:
        """``ValueError`` before any work if a file cannot be written."""
        check_suffix("--out", self.out, ".html")
        check_suffix("--pdf", self.pdf, ".pdf")
        if self.pdf or self.figures:
            from explorer.reports.write import check_printer

            check_printer()

    def write(self, content: Content, as_json: bool) -> None:
        """Write the report and print the names of its files."""
        from explorer.reports import write

        pdf, figures = (Path(path) if path else None for path in (self.pdf, self.figures))
        with reporting("files", as_json) as progress:
            paths = write(content, Path(self.out), pdf, figures, progress)
        emit(as_json, {"written": list(map(str, paths)), "numbers": content.numbers}, *map(written, paths))


@dataclass(frozen=True)
class TriedMethods:
    """Methods that a tensor's report compares on the layer's inputs."""

    inputs: str | None = typer.Option(
        None, help="The layer's inputs (tokens × K), for methods; half are held out."
    )
    inputs_tensor: str | None = typer.Option(None, help="Which tensor of the inputs, if there are several.")
    methods: str | None = typer.Option(
        None, help="Methods to compare on the inputs, comma-separated, e.g. rtn,gptq."
    )
    method_schemes: str | None = typer.Option(
        None, help="Schemes to compare them under.", show_default="those of A and B"
    )
    activations: Activations = None

    def asked(self, recipes: list[Recipe]) -> Methods | None:
        """Return what is to be compared beside ``recipes``; ``ValueError`` without inputs to compare on."""
        from explorer.methods import names_in
        from explorer.reports.tensor import Methods

        if (self.methods or any(recipe.method for recipe in recipes)) and not self.inputs:
            raise ValueError("methods need the layer's inputs: name them by --inputs")
        if self.methods is None:
            return None
        names = tuple(split(self.methods))
        for name in names:
            names_in(name)
        under = _recipes(self.method_schemes) if self.method_schemes else recipes
        schemes = tuple(dict.fromkeys(str(recipe.scheme) for recipe in under))
        return Methods(names, schemes, _scheme(self.activations))


@command(
    "report sample:mlp_up --schemes int4_group128_asym,nvfp4 --out report.html",
    "report W.safetensors --tensor w --schemes nvfp4 --pdf report.pdf --figures figures",
    "report sample:mlp_up --schemes int4_group128,int4_group128+gptq --inputs sample:mlp_up_in "
    "--methods rtn,gptq,awq",
    name=DEFAULT,
)
def tensor(
    source: Source,
    tried: TriedMethods,
    files: ReportFiles,
    schemes: str = typer.Option(help="One or two schemes, A and B; SCHEME+METHOD for a method's result."),
    element: str | None = typer.Option(
        None, help="ROW,COLUMN to look into.", show_default="A's largest error"
    ),
    own: float | None = typer.Option(None, help="A range of your own, as a share (0 ... 1) of min-max."),
    timings: str | None = TIMINGS,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Report on a tensor under one or two schemes, with the content of the page."""
    from explorer.reports.tensor import More, tensor_report
    from explorer.sources import load_matrix

    use_device(device)
    recipes, at = _recipes(schemes), _element(element)
    methods, timed = tried.asked(recipes), _timings(timings)
    matrix = source.load(as_json)
    x = load_matrix(tried.inputs, tried.inputs_tensor).values if tried.inputs else None
    read = {**asdict(source), "inputs": tried.inputs, "inputs_tensor": tried.inputs_tensor}
    more = More(element=at, own=own, inputs=x, methods=methods, timings=timed)
    with reporting("sections", as_json) as progress:
        content = tensor_report(matrix, recipes, read, more, progress)
    files.write(content, as_json)


@dataclass(frozen=True)
class AskedRecipe(RecipeLimits):
    """The recipe that a survey's report is about."""

    bits: float | None = typer.Option(
        None, help="The budget: mean bits per weight, scales counted.", show_default="4.5"
    )
    time: str | None = typer.Option(
        None, help="Or the time of all linear layers in one step, such as 12ms, as recorded."
    )
    method: str = typer.Option(
        "", help="One method for the codes of all layers: {METHODS}.", show_default="the survey's"
    )

    def asked(self) -> Asked:
        """Return the request; ``ValueError`` for two budgets."""
        from explorer.reports.survey import USUAL_BITS, Asked
        from explorer.survey.times import seconds_of

        if self.bits is not None and self.time is not None:
            raise ValueError("name one budget: --bits or --time")
        return Asked(
            USUAL_BITS if self.bits is None else self.bits,
            self.target,
            listed(self.keep),
            self.inputs,
            seconds_of(self.time) if self.time is not None else None,
            self.batch or 1 if self.time is not None else None,
            self.method,
        )


@command(
    "report survey all-MiniLM-L6-v2 --bits 4.5 --out report.html",
    "report survey model.jsonl --bits 4 --for compressed-tensors --check-model --pdf report.pdf",
)
def survey(
    recipe: AskedRecipe,
    files: ReportFiles,
    file: str = typer.Argument(
        metavar="SURVEY", help="A file of `explorer survey`, or a recorded one's name."
    ),
    check_model: bool = typer.Option(
        False, "--check-model", help="Run the model that the recipe makes: its true loss."
    ),
    model: str | None = typer.Option(None, help="Folder or Hub id.", show_default="the survey's own"),
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Report on a model's survey: sensitive layers, and the recipe for a budget of bits or time."""
    hide_bars_of_transformers(as_json)
    from explorer.models.files import check_weights
    from explorer.reports.survey import bought, find_survey, survey_report
    from explorer.survey.budget import too_few_bits
    from explorer.survey.check import check_recipe

    if model and not check_model:
        raise ValueError("--model is the model that --check-model runs")
    asked = recipe.asked()
    use_device(device)
    one, check = bought(find_survey(file), asked), None
    if check_model:
        from explorer.models.capture import load_model

        place = model or one.recipe.model
        check_weights(one.recipe, place)
        loaded = load_model(place, one.recipe.revision, head=True)
        with reporting("models", as_json) as progress:
            check = check_recipe(one.recipe, loaded, survey=one.survey, progress=progress)
    content = survey_report(file, one, check, model)
    seconds, least = content.numbers.get("choice.seconds", 0.0), content.numbers["choice.bits"]
    if asked.seconds is not None and seconds > asked.seconds * (1 + ROUNDED):
        shortest = words.duration(seconds)
        raise ValueError(f"{recipe.time} is less than the linear layers take by these schemes: {shortest}")
    if recipe.bits is not None and least > recipe.bits + ROUNDED:
        raise ValueError(too_few_bits(recipe.bits, least))
    files.write(content, as_json)


@command(
    "report speed --shape 1x8192x8192 --schemes nvfp4,int4_group128 --out report.html",
    "report speed --timings timings.json --out report.html",
)
def speed(
    files: ReportFiles,
    shape: str | None = typer.Option(None, help="M x N x K.", show_default="one token"),
    schemes: str | None = typer.Option(None, help="One or two schemes to mark, A and B."),
    timings: str | None = TIMINGS,
    as_json: Json = False,
) -> None:
    """Matrix products at one shape: recorded on a named GPU, or timed on your machine."""
    from explorer.reports.speed import speed_report

    recipes, at = _recipes(schemes) if schemes else [], sizes(shape, "M x N x K") if shape else None
    files.write(speed_report(_timings(timings), at, recipes), as_json)


@command("report training --widths 8,4,ternary --seeds 1 --out report.html")
def training(
    files: ReportFiles,
    widths: str | None = typer.Option(
        None, help="Comma-separated: 8 ... 2, ternary, binary.", show_default="all"
    ),
    seeds: int = typer.Option(3, help="Networks of each kind."),
    epochs: int = typer.Option(20, help="Epochs of the float32 network."),
    again: int = typer.Option(8, help="Epochs of training on."),
    activations: Activations = None,
    as_json: Json = False,
) -> None:
    """Accuracy against bits on images of digits, before and after training through the rounding."""
    from explorer.reports.training import Settings, trained, training_report
    from explorer.training.digits import WIDTHS

    names = tuple(split(widths)) if widths is not None else tuple(WIDTHS)
    settings = Settings(names, seeds, epochs, again, _scheme(activations))
    with reporting("networks", as_json) as progress:
        results = trained(settings, progress)
    files.write(training_report(settings, results), as_json)


def _recipes(texts: str) -> list[Recipe]:
    from explorer.methods.recipe import Recipe

    return [Recipe.parse(text) for text in split(texts)]


def _scheme(text: str | None) -> str:
    """Return a scheme's canonical text, "" for none."""
    return str(parse_scheme(text)) if text else ""


def _timings(path: str | None) -> Recording[GemmTiming] | None:
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
