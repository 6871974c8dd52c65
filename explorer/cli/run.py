"""``explorer run``: a model that writes, under a scheme or a recipe."""

from __future__ import annotations

import json
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Literal

import typer

from explorer.cli.commands import add_command
from explorer.cli.options import (
    MODELS,
    Device,
    Json,
    Revision,
    check_model,
    check_readable,
    texts_option,
    use_device,
)
from explorer.cli.output import (
    PrintedTable,
    hide_bars_of_transformers,
    print_json,
    print_table,
    reporting,
    say,
    stream,
)
from explorer.words import bytes_, number

if TYPE_CHECKING:
    from explorer.methods.recipe import Recipe
    from explorer.models.texts import AnyTexts
    from explorer.running import Comparison, Engine, Sampling, Subject, Token, TokenCandidate, Writing
    from explorer.survey import ModelRecipe

app = typer.Typer()
command = partial(add_command, app, MODELS)
EngineName = Literal["auto", "torch", "llama.cpp"]
"""``explorer.running.choice.NAMES``, whose module imports torch."""
ORIGINAL = "original"
MARKS = "⟦⟧"
"""Marks around the first token that differs between two texts."""
COLUMNS = (
    "", "engine", "tokens of prompt", "prompt tokens/s", "tokens written", "tokens/s", "weights in files",
    "in memory",
)  # fmt: skip
STOPPED = 130
"""The exit code of a command that Ctrl-C ended."""


@dataclass(frozen=True)
class RunModels:
    """The model that writes, and the model to compare it with."""

    model: str = typer.Argument(
        help="A folder of a model or a checkpoint, a Hub id (owner/name) or a .gguf file."
    )
    recipe: str | None = typer.Option(None, help="Quantize by this file, which `explorer recipe` wrote.")
    scheme: str | None = typer.Option(
        None, help="Or all linear layers but the head by one scheme, e.g. q8_0 or int4_group64+gptq."
    )
    compare: bool = typer.Option(
        False, "--compare", help="Also run the original: where the texts part, KL at each token."
    )
    original: str | None = typer.Option(
        None,
        metavar="MODEL",
        help="What to compare with: the model that a checkpoint or .gguf file was made of.",
        show_default="the model without the recipe",
    )
    revision: Revision = None

    def __post_init__(self) -> None:
        """``ValueError`` before any work for options that do not go together, or a model that is not here."""
        check_model(self.model)
        if self.recipe is not None and self.scheme is not None:
            raise ValueError("name one: --recipe or --scheme")
        if self.compare and self.recipe is self.scheme is self.original is None:
            named = "" if self.model.endswith(".gguf") else "--recipe or --scheme, or "
            raise ValueError(
                f"--compare holds a quantized model against its original: name {named}--original MODEL for "
                "what is quantized already"
            )
        if self.original is not None:
            check_model(self.original)
        check_readable(self.recipe)

    def subjects(self) -> tuple[Subject, Subject | None]:
        """Return the model to run, and the model to compare it with, if any."""
        from explorer.running import subject_of

        subject = subject_of(self.model, self._recipe(), self.revision)
        if self.original is not None:
            return subject, subject_of(self.original)
        return subject, subject.original if self.compare else None

    def _recipe(self) -> ModelRecipe | Recipe | None:
        if self.recipe is None:
            from explorer.methods.recipe import Recipe

            return Recipe.parse(self.scheme) if self.scheme is not None else None
        from explorer.survey import ModelRecipe

        found = ModelRecipe.load(self.recipe)
        if found.cache is not None:
            say("the cache is exact here, not as the recipe says: `explorer check` measures it", error=True)
        return found


@command(
    'run path/to/model --scheme q8_0 --prompt "The capital of France is"',
    'run path/to/model --recipe recipe.json --prompt "Once upon a time" --tokens 128 --compare',
    'run model.gguf --prompt "Once upon a time" --json',
)
def run(
    models: RunModels,
    prompt: str = typer.Option(help="The beginning of the text."),
    tokens: int = typer.Option(64, min=1, help="The most tokens to write."),
    engine: EngineName = typer.Option(
        "auto",
        help="What runs it; auto takes llama.cpp for what a GGUF file holds, on a CPU with xllamacpp "
        "installed.",
    ),
    temperature: float = typer.Option(0, min=0, help="0: the most probable token each time; above: drawn."),
    seed: int = typer.Option(0, min=0, help="Seed of the draws."),
    calibration: str | None = texts_option("to run for the layers' inputs, which methods need"),
    device: Device = None,
    as_json: Json = False,
) -> None:
    """Run a model, quantized or not: text as it comes, tokens a second, memory. Ctrl-C ends the text."""
    hide_bars_of_transformers(as_json)
    check_readable(calibration)
    from explorer.models.text_files import read_texts
    from explorer.running import Sampling, open_engine, open_like
    from explorer.running import compare as held_against
    from explorer.running.engine import check_prompt

    seen: AnyTexts = read_texts(calibration) if calibration else ()
    check_prompt(prompt, tokens)
    asked = (prompt, tokens, Sampling(temperature, seed))
    where, room = use_device(device), tokens + len(prompt.encode()) + 16  # a token has at least a byte
    subject, beside = models.subjects()
    runs: list[_Run] = []
    compared, stopped = None, False
    with ExitStack() as stack:
        try:
            with reporting("layers", as_json) as progress:
                first = stack.enter_context(open_engine(subject, engine, where, seen, progress, room))
            _write(runs, _name(subject), first, asked, as_json)
            if beside is not None:
                second = stack.enter_context(open_like(first, beside, where, room))
                _write(runs, ORIGINAL, second, asked, as_json)
                compared = held_against(runs[1].writing, runs[0].writing, where, seen)
        except KeyboardInterrupt:
            if not runs:
                raise
            stopped = True
        if as_json:
            comparison = compared and {**vars(compared), "mean_kl": compared.mean_kl}
            found = {"model": models.model, "prompt": prompt, "runs": [_record(one) for one in runs]}
            print_json({**found, "comparison": comparison, "stopped": stopped})
        else:
            _print_figures(runs)
            if compared is not None:
                _print_comparison(compared, runs)
    if stopped:
        raise typer.Exit(STOPPED)


@dataclass(frozen=True)
class _Run:
    name: str
    writing: Writing


def _name(subject: Subject) -> str:
    """Return the name of a run: by its recipe, or by the form of the files."""
    if subject.recipe is None:
        return subject.kind.value if subject.kind.value != "weights" else ORIGINAL
    return next(iter(subject.recipe.counts)) if len(subject.recipe.counts) == 1 else "recipe"


def _write(
    runs: list[_Run], name: str, engine: Engine, asked: tuple[str, int, Sampling], as_json: bool
) -> None:
    """Add a text to ``runs`` and print it as it comes; Ctrl-C passes through, and the text so far stays."""
    writing = engine.write(*asked)
    runs.append(_Run(name, writing))
    if as_json:
        with writing:
            list(writing)
        return
    say(f"{name}, by {engine.name} ({engine.why}):")
    try:
        with writing:
            for token in writing:
                stream(token.text if len(writing.tokens) > 1 else asked[0] + token.text)
    finally:
        stream("\n\n" if writing.tokens else "")


def _print_figures(runs: Sequence[_Run]) -> None:
    """Print speed and memory of each run, and the kernels that ran it."""
    from explorer.recordings.machine import peak_bytes

    rows = []
    for run in runs:
        engine, figures = run.writing.engine, run.writing.figures
        speeds = (figures.prompt_tokens, figures.prompt_per_second, figures.tokens, figures.tokens_per_second)
        rows.append((run.name, engine.name, *speeds, bytes_(engine.stored_bytes), bytes_(engine.held_bytes)))
    print_table(PrintedTable(COLUMNS, rows))
    for run in runs:
        engine, told = run.writing.engine, run.writing.figures.told
        say(f"{run.name}: {engine.kernels}")
        if told and told.prompt_per_second and told.tokens_per_second:
            say(
                f"{run.name}, by {engine.name}'s own clock: {number(told.prompt_per_second)} tokens/s of "
                f"prompt, {number(told.tokens_per_second)} written"
            )
    peak = peak_bytes()
    if peak is not None:
        say(f"peak memory of this process: {bytes_(peak)}")


def _print_comparison(compared: Comparison, runs: Sequence[_Run]) -> None:
    """Print both texts, the first token that differs, and KL along the original's."""
    changed, original = runs
    parting = compared.parting
    index = parting.index if parting else None
    marked = [_marked(run.writing.tokens, index) for run in (original, changed)]
    print_table(PrintedTable((ORIGINAL, changed.name), [marked]))
    if parting is None:
        say("the texts are the same, token for token")
    else:
        sides = {ORIGINAL: parting.original, changed.name: parting.changed}
        said = "; ".join(f"{name} {_token_words(token)}" for name, token in sides.items())
        say(f"they part at token {parting.index + 1}, marked {MARKS[0]} {MARKS[1]}: {said}")
        tops = [token.top if token else () for token in sides.values()]
        rows = [
            (rank + 1, *_candidate(tops[0], rank), *_candidate(tops[1], rank))
            for rank in range(max(map(len, tops)))
        ]
        if rows:
            print_table(PrintedTable(("", ORIGINAL, "probability", changed.name, "probability"), rows))
    if not compared.steps:
        return
    steps = [
        (index + 1, _quoted(step.text), step.kl, _first(step.original), _first(step.changed))
        for index, step in enumerate(compared.steps)
    ]
    columns = ("token", "of the original", "KL, nats", "its first choice", f"{changed.name}'s")
    print_table(PrintedTable(columns, steps))
    worst = max(compared.steps, key=lambda step: step.kl)
    say(
        f"KL of {changed.name} against the original, nats a token: {number(compared.mean_kl or 0)} on "
        f"average, at most {number(worst.kl)}, at {_quoted(worst.text)} (both models by torch)"
    )


def _marked(tokens: Sequence[Token], index: int | None) -> str:
    pieces = [token.text for token in tokens]
    if index is not None and index < len(pieces):
        pieces[index] = f"{MARKS[0]}{pieces[index]}{MARKS[1]}"
    return "".join(pieces)


def _token_words(token: Token | None) -> str:
    return "has ended" if token is None else f"has {_quoted(token.text)}"


def _quoted(text: str) -> str:
    """A token's text with its blanks; the end of a text has none."""
    return json.dumps(text, ensure_ascii=False)


def _candidate(top: Sequence[TokenCandidate], rank: int) -> tuple[str | None, float | None]:
    return (_quoted(top[rank].text), top[rank].probability) if rank < len(top) else (None, None)


def _first(top: Sequence[TokenCandidate]) -> str:
    return f"{_quoted(top[0].text)} {100 * top[0].probability:.1f} %"


def _record(run: _Run) -> dict[str, Any]:
    from explorer.recordings.machine import peak_bytes

    engine, figures = run.writing.engine, run.writing.figures
    rates = {name: getattr(figures, name) for name in ("prompt_per_second", "tokens_per_second")}
    return {
        "name": run.name,
        "engine": engine.name,
        "why": engine.why,
        "kernels": engine.kernels,
        "text": run.writing.text,
        "ids": run.writing.ids,
        "tokens": run.writing.tokens,
        "figures": {**vars(figures), **rates},
        "held_bytes": engine.held_bytes,
        "stored_bytes": engine.stored_bytes,
        "peak_bytes": peak_bytes(),
    }
