"""Commands that measure what formats cost a whole model: its layers, and its keys and values."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import typer

from explorer.cli.commands import add_command
from explorer.cli.options import (
    MODELS,
    Device,
    Json,
    Revision,
    TextOptions,
    check_model,
    check_readable,
    check_suffix,
    listed,
    parse_scheme,
    split,
    texts_option,
    use_device,
)
from explorer.cli.output import PrintedTable, emit, hide_bars_of_transformers, reporting, say, written
from explorer.words import bytes_

if TYPE_CHECKING:
    from explorer.models.texts import AnyTexts
    from explorer.survey import Survey
    from explorer.survey.cache import CacheRow, CacheSurvey
    from explorer.survey.run import SurveyPlan

app = typer.Typer()
command = partial(add_command, app, MODELS)
SIGNALS = ("weight", "fisher_diagonal")
"""The rows of ``SENSITIVITIES``, whose module imports torch."""


@dataclass(frozen=True)
class SurveyOptions:
    """The layers, schemes and signals of a survey."""

    model: str = typer.Argument(help="A model folder, a Hub id (owner/name) or a .gguf file.")
    text: str | None = texts_option("to calibrate by")
    schemes: str | None = typer.Option(
        None, help="Comma-separated schemes.", show_default="fourteen from 2.3 to 8 bits"
    )
    signal: str | None = typer.Option(
        None,
        help=f"Comma-separated: {', '.join(SIGNALS)}.",
        show_default="fisher_diagonal, or weight where the model cannot be run",
    )
    include: str | None = typer.Option(
        None,
        help="Linear layers beside the language part (vision, sound) that are surveyed too: parts of names "
        "or patterns, comma-separated.",
    )
    exclude: str | None = typer.Option(None, help="Layers that stay as they are: parts of names or patterns.")
    embeddings: bool = typer.Option(
        True, help="Survey the table of tokens' embeddings too, which is also the head where both are tied."
    )
    methods: str = typer.Option(
        "",
        help="Also predict what these methods leave of each layer's loss: then a recipe chooses a method for "
        "each layer. Comma-separated, of those that choose codes alone: gptq, gptq_order, gptq_sequential, "
        "autoround, …",
        show_default="round to nearest alone",
    )
    revision: Revision = None

    def __post_init__(self) -> None:
        """``ValueError`` before any work for a model that is not here and for an unknown signal."""
        check_model(self.model)
        for name in listed(self.signal):
            if name not in SIGNALS:
                raise ValueError(f"no signal {name!r}; there are {', '.join(SIGNALS)}")
        check_readable(self.text)

    def plan(self, texts: AnyTexts) -> SurveyPlan:
        """Return the request of the survey, calibrated by ``texts``."""
        from explorer.survey.run import SCHEMES, SurveyPlan

        return SurveyPlan(
            self.model,
            self.revision,
            SCHEMES if self.schemes is None else tuple(split(self.schemes)),
            listed(self.signal) or None,
            texts,
            listed(self.include),
            listed(self.exclude),
            self.embeddings,
            listed(self.methods),
        )


@command(
    "survey path/to/model --text text.txt --out model.jsonl",
    "survey path/to/model --methods gptq --out model.jsonl",
    "survey path/to/model --schemes nvfp4,mxfp4,int8_row --signal weight",
)
def survey(
    asked: SurveyOptions,
    how: TextOptions,
    out: str | None = typer.Option(
        None, help="The file, a JSON line a layer.", show_default="MODEL.survey.jsonl"
    ),
    ray: str | None = typer.Option(
        None,
        metavar="ADDRESS",
        help="Layers as tasks of the Ray at this address; local starts one here, auto finds one.",
        show_default="layer after layer, here",
    ),
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Survey every linear layer of a model, its head and its embeddings with every scheme: size and loss. A
    stopped survey continues when the same command is given again.
    """
    path = Path(out or f"{Path(asked.model).name or 'model'}.survey.jsonl")
    (texts,) = how.read(asked.text)
    hide_bars_of_transformers(as_json)
    from explorer.checkpoints.tiny import note_of
    from explorer.survey.cluster import on_ray
    from explorer.survey.run import in_this_process, survey_model

    plan = asked.plan(texts)
    say(*note_of(asked.model, asked.revision), error=True)
    use_device(device)
    rows = on_ray(ray) if ray else in_this_process
    try:
        with reporting("running the model", as_json) as ran, reporting("layers", as_json, later=True) as done:
            found = survey_model(plan, path, progress=done, run_progress=ran, rows=rows)
    except KeyboardInterrupt:
        say(_kept_of(path), error=True)
        raise
    if not as_json:
        say(*_doubts(found), error=True)
    records = {"file": str(path), "head": found.head, "layers": found.layers}
    emit(as_json, records, *_shown(found), written(path))


def _kept_of(path: Path) -> str:
    """Describe what a stopped survey leaves in its file, and how to continue."""
    from explorer.survey import load_survey

    try:
        found = load_survey(path)
    except (ValueError, OSError):
        return "no layer was done yet: the same command begins anew"
    done, of = len(found.layers), found.head.layers
    return f"{path} keeps {done:,} of {of:,} layers: the same command runs the model again and does the rest"


def _doubts(found: Survey) -> list[str]:
    """Describe what limits the trust in a survey, a line each."""
    from explorer.survey import SENSITIVITIES
    from explorer.survey.sentences import kept, rarely_reached

    row, lines = SENSITIVITIES[found.head.default], []
    if found.head.why:
        lines.append(f"the model was not run: {found.head.why} (to try again, name another file by --out)")
    if not row.is_loss:
        lines.append(f"{row.label}: {row.trust}")
    if left := kept(found) + rarely_reached(found):
        lines.append(left.strip())
    return lines


def _shown(found: Survey) -> tuple[PrintedTable, str]:
    """Return single schemes for all layers, and the budgets that a recipe can have."""
    from explorer.survey import SENSITIVITIES, Constraints, frontier

    front, rounded = frontier(found), frontier(found, constraints=Constraints(methods=()))
    loss = loss_words(found, SENSITIVITIES[found.head.default].is_loss)
    columns = ["one scheme for all layers", "bits", loss]
    rows = [[point.scheme, point.bits, point.loss] for point in rounded.uniform]
    if found.head.methods:
        columns.append("each layer by its best method")
        rows = [[*cells, point.loss] for cells, point in zip(rows, front.uniform, strict=True)]
    return PrintedTable(columns, rows), (
        f"{len(found.linear)} layers of {found.head.model}; a recipe: `explorer recipe`, --bits from "
        f"{front.least:.2f} to {front.most:.2f}"
    )


def loss_words(found: Survey, is_loss: bool) -> str:
    """Return the name of the predicted quantity: a loss, or an error that is not a loss."""
    return f"predicted loss ({found.head.loss})" if is_loss else "error, not a loss"


@command(
    "cache path/to/model --text text.txt",
    "cache path/to/model --schemes fp8_e4m3_cast --out cache.safetensors",
    name="cache",
)
def cache_of(
    how: TextOptions,
    model: str = typer.Argument(help="Folder or Hub id of a causal model."),
    text: str | None = texts_option("to measure on"),
    schemes: str | None = typer.Option(
        None,
        help="Comma-separated schemes, each for keys alone and for values alone.",
        show_default="eleven from 8 to 2 bits",
    ),
    out: str | None = typer.Option(
        None, help="Write keys and values of the texts to this .safetensors file."
    ),
    revision: Revision = None,
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Measure what each format of the cache of keys and values costs a causal model, and what it saves."""
    check_readable(text)
    check_suffix("--out", out)
    (texts,) = how.read(text)
    hide_bars_of_transformers(as_json)
    from explorer.analysis.cache import CachePlan
    from explorer.export.files import write_tensors
    from explorer.models.capture import load_model
    from explorer.survey.cache import SCHEMES, CacheSurvey, captured_cache
    from explorer.survey.sentences import texts_run

    asked = [parse_scheme(name) for name in (SCHEMES if schemes is None else split(schemes))]
    found = CacheSurvey(load_model(model, revision, use_device(device), head=True), texts)
    with reporting("caches", as_json) as progress:
        rows = list(found.rows(asked, progress))
    if out:
        write_tensors(captured_cache(found.model, found.texts), out, {"model": found.model.name})
    ran = found.reference
    records = {
        "rows": rows,
        "texts": len(ran.sequences),
        "tokens": ran.tokens,
        "bytes_a_token": found.shape.bytes_a_token(CachePlan()),
        "shape": found.shape,
    }
    measured = (
        f"KL: nats a token, over {texts_run(len(ran.sequences), ran.left_out)} of "
        f"{text or 'the built-in held-out ones'}, {ran.tokens:,} tokens; 95 % interval over texts"
    )
    emit(as_json, records, _cache_table(rows), measured, *_cache_words(found), written(out))


def _cache_table(rows: Sequence[CacheRow]) -> PrintedTable:
    from explorer.analysis.cache import CONTEXT

    at = f"at {CONTEXT:,} tokens"
    columns = ("of", "scheme", "bits", "bytes a token", at, "KL (nats)", "95 %", "same token")
    lines = [
        (
            row.part,
            row.scheme,
            row.bits,
            round(row.bytes_a_token),
            bytes_(row.context_bytes),
            row.kl,
            "" if row.low is None else f"{row.low:.3g} to {row.high:.3g}",
            f"{100 * row.same_top:.1f} %",
        )
        for row in rows
    ]
    return PrintedTable(columns, lines)


def _cache_words(found: CacheSurvey) -> list[str]:
    """Describe the size of a model's exact cache, and the layers that keep a window of it."""
    from explorer.analysis.cache import CONTEXT, CachePlan

    exact, shape = CachePlan(), found.shape
    return [
        f"{len(shape.layers)} layers; a token takes {shape.bytes_a_token(exact):,.0f} bytes in 16 bits, "
        f"{CONTEXT:,} tokens {bytes_(shape.bytes_of(exact, CONTEXT))}",
        *(
            f"{count} layers keep the tokens of their sliding window alone: {window:,}"
            for window, count in sorted(Counter(shape.windows).items())
        ),
    ]
