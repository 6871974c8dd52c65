"""Run: one prompt, continued by a model and by what schemes or the survey's recipe make of it."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from dataclasses import dataclass
from typing import Any, TypeVar

import gradio as gr

from app import limits
from app.parts import html
from app.parts.page import Page
from app.parts.texts import ORIGINAL, TextColumn, texts
from app.parts.views import Control, Shown, StatusView, listen, shows
from app.parts.widgets import RunButtons, block, heading, stop_button
from app.sections.survey import OWN, Budget
from app.serving.work import LeftError
from app.state.analyses import each, loading
from app.state.gpu_lock import gpu_lock, locked_steps
from app.state.models import check_runnable
from app.state.selection import NothingChosenError
from explorer.core.backend import work_device
from explorer.methods.recipe import Recipe
from explorer.progress import Progress, StoppedError
from explorer.running import Comparison, Engine, Subject, Writing, compare, open_engine, subject_of
from explorer.running.choice import AUTO
from explorer.running.compare import parting_so_far
from explorer.running.engine import check_prompt
from explorer.running.torch_engine import TorchEngine
from explorer.running.transcript import USUAL_PROMPT, USUAL_TOKENS, Transcript, recorded_texts
from explorer.schemes.scheme import label_of_text
from explorer.survey.recipe import ModelRecipe

RECIPE = "recipe"
COLUMNS = {ORIGINAL: "The original", "a": "Scheme A", "b": "Scheme B", RECIPE: "The survey's recipe"}
USUAL_COLUMNS = (ORIGINAL, "a", "b")
MOST_LINKED = 200
"""Characters of a prompt that a link holds."""
SHOWN_EVERY_S = 0.1
EXAMPLE = "HuggingFaceTB/SmolLM2-135M-Instruct"
NO_MODEL = (
    f"name a causal language model: a Hub id such as {EXAMPLE}, or on a local page a folder; an empty box "
    "means the model of your own survey above, and there is none yet"
)
HOSTED_ENGINE = "a public page runs torch alone"
WAITS: dict[str, Any] = {"show_progress": "minimal"}
"""A run that has to wait says its place in the queue."""
Result = TypeVar("Result")
STOPPED = "Stopped; what was written and measured is kept."


@dataclass(frozen=True)
class TextsView(StatusView):
    """How far the run is; where the texts come from (a recording, or this machine), the texts, and the
    commands that write them. live: true once a visitor's own run is shown."""

    source: Shown
    texts: Shown
    command: Shown
    live: Shown


@shows(TextsView)
def recorded_run(live: bool) -> TextsView:
    """The recorded run, unless the visitor's own is shown."""
    recording = recorded_texts()
    if live or not recording:
        return TextsView.unchanged()
    columns = []
    for one in recording.rows:
        label = label_of_text(one.scheme) if one.scheme else COLUMNS[ORIGINAL]
        columns.append(TextColumn(one.scheme or ORIGINAL, label, mark=html.short_name(label), transcript=one))
    first = recording.rows[0]
    schemes = [one.scheme for one in recording.rows if one.scheme]
    return TextsView.unchanged(
        source=html.sentence(
            f"A recorded run of {first.model}, {recording.source}. Name a model for one of your own."
        ),
        texts=texts(first.prompt, columns),
        command=html.commands(
            [
                "pip install 'quantization-explorer[run]'",
                f"hf download {EXAMPLE}",
                *_commands(
                    EXAMPLE, [_scheme(one) for one in schemes[:1]], first.prompt, first.figures.tokens
                ),
            ]
        ),
    )


@shows(TextsView)
def write(
    where: str,
    prompt: str,
    tokens: float,
    which: list[str],
    first: str,
    second: str,
    surveyed: str,
    asked: Budget,
) -> Iterator[TextsView]:
    """Continue ``prompt`` by at most ``tokens`` tokens: by the model at ``where`` (a folder, a Hub id or a
    .gguf file; "": the model of one's own survey, at ``surveyed`` if that is named) and by the columns
    ``which`` (of ``COLUMNS``) of it, with the schemes ``first`` and ``second`` for A and B. One column after
    another, so that each has the machine to itself. Yields the texts as they come; stopping keeps what is
    there."""
    count = _checked(prompt, tokens)
    schemes = {"a": first, "b": second}
    names = [name for name in COLUMNS if name in which and schemes.get(name, "-")]
    if not names:
        raise ValueError("choose at least one column; B needs a scheme B")
    place = _place(where, surveyed, asked)
    check_runnable(place)
    run = _Run(subject_of(place, limits=limits.current().sources), prompt, count)
    for name in names:
        run.add(name, schemes.get(name, ""), asked)
    try:
        yield from run.steps()
    except ValueError:  # of model or prompt; before the first token the texts of the run before are shown
        yield run.ended("")
        raise
    except LeftError:
        raise
    except StoppedError:
        limit = f"the time limit of a run here, {limits.current().run_seconds:.0f} s"
        yield run.ended(f"Stopped: {limit}. What was written and measured is kept.")


class _Run:
    """A run of one model: its columns, filled one after another."""

    def __init__(self, plain: Subject, prompt: str, tokens: int) -> None:
        self.plain, self.prompt, self.tokens = plain, prompt, tokens
        self.columns: list[TextColumn] = []
        self._recipes: dict[str, Recipe | ModelRecipe | None] = {ORIGINAL: None}

    def add(self, name: str, scheme: str, asked: Budget) -> None:
        """A column of ``COLUMNS``, of a scheme or of what the survey's budget buys; one that cannot be made
        says why."""
        column = TextColumn(name, COLUMNS[name], name.upper(), "waits for its turn")
        self.columns.append(column)
        try:
            if name == RECIPE:
                column.mark = "recipe"
                recipe = asked.bought().recipe
                self._recipes[name] = recipe
                column.label = f"The survey's recipe, {recipe.bits or 0:.2f} bits"
            elif name != ORIGINAL:
                parsed = Recipe.parse(scheme)
                self._recipes[name], column.label = parsed, parsed.label
        except ValueError as error:
            column.state, column.error = "", str(error)

    def steps(self) -> Iterator[TextsView]:
        """What is shown, from waiting columns to whole ones."""
        yield self.view(f"Opening {self.plain.name} …")
        original: Writing | None = None
        with ExitStack() as held:  # the original, which all others are compared with
            for column in self.columns:
                with ExitStack() as closed:
                    engine = None if column.error else (yield from self._opened(column))
                    if engine is None:
                        continue
                    stack = held if column.name == ORIGINAL else closed
                    stack.enter_context(engine)
                    writing = stack.enter_context(engine.write(self.prompt, self.tokens))
                    yield from self._written(column, writing, original)
                    if column.name == ORIGINAL:
                        original = writing
                    elif original is not None:
                        yield from self._compared(column, original, writing)
                    column.state = ""
        if not self._begun:
            raise ValueError("; ".join(f"{column.label}: {column.error}" for column in self.columns))
        yield self.view(self._ended())

    def ended(self, status: str) -> TextsView:
        """What is there when a run ends before its last column."""
        for column in self.columns:
            column.state = column.after if column.state else ""
        return self.view(status)

    @property
    def _begun(self) -> bool:
        """Whether there is something to show in place of the texts of the run before."""
        return any(column.transcript for column in self.columns)

    def view(self, status: str) -> TextsView:
        if not self._begun:  # texts.css: columns that are there are of the run before
            return TextsView.unchanged(status=f'<div class="opening">{html.status(status)}</div>')
        shown = [c for c in self.columns if self._recipes.get(c.name)]
        options = [
            "--recipe recipe.json" if c.name == RECIPE else _scheme(self._recipes[c.name]) for c in shown
        ]
        return TextsView(
            status=html.status(status),
            source="",
            texts=texts(self.prompt, self.columns),
            command=html.commands(_commands(self.plain.place, options, self.prompt, self.tokens)),
            live=True,
        )

    def _opened(self, column: TextColumn) -> Generator[TextsView, None, Engine | None]:
        """The column's engine; None, and its column says why, where there is none."""
        recipe = self._recipes[column.name]
        bounds, room = limits.current(), self.tokens + len(self.prompt.encode()) + 16

        def load(progress: Progress) -> Engine:
            subject = self.plain
            if recipe is not None:
                subject = subject_of(self.plain.place, recipe, limits=bounds.sources)
            with gpu_lock():
                name = TorchEngine.name if bounds.hosted else AUTO
                engine = open_engine(subject, name, work_device(), progress=progress, room=room)
            if bounds.hosted:
                engine.why = HOSTED_ENGINE
            try:
                progress(1, 1)
            except BaseException:  # nobody waits for it any more
                engine.close()
                raise
            return engine

        try:
            return (yield from self._told(column, "Loading", load))
        except ValueError as error:
            if column is self.columns[0] and column.name == ORIGINAL:
                raise  # nor can the others be loaded
            column.state, column.error = "", str(error)
            return None

    def _written(self, column: TextColumn, writing: Writing, original: Writing | None) -> Iterator[TextsView]:
        """The column's text as it comes, held against the ``original``'s: a run may be stopped at any
        token."""
        said, last = f"{column.label} writes …", 0.0
        scheme = "" if column.name in (ORIGINAL, RECIPE) else str(self._recipes[column.name])
        column.state = "writes …"
        for _ in locked_steps(writing):
            compared = None if original is None else Comparison(parting_so_far(original, writing), ())
            column.transcript = Transcript.of(writing, scheme, compared)
            if time.monotonic() - last > SHOWN_EVERY_S:
                yield self.view(said)
                last = time.monotonic()

    def _compared(self, column: TextColumn, original: Writing, writing: Writing) -> Iterator[TextsView]:
        def hold(progress: Progress) -> Comparison:
            with gpu_lock():
                return compare(original, writing, work_device())

        compared = yield from self._told(column, "Comparing", hold)
        assert column.transcript is not None
        column.transcript = dataclasses.replace(column.transcript, comparison=compared)

    def _told(
        self, column: TextColumn, what: str, work: Callable[[Progress], Result]
    ) -> Generator[TextsView, None, Result]:
        """The result of ``work``; says how far it is in the column."""

        def say(words: str) -> TextsView:
            column.state = words
            return self.view(f"{what}: {column.label} …" if self._begun else f"{column.label}: {words}")

        return (yield from each(loading(what, work), say))

    def _ended(self) -> str:
        done = sum(column.transcript is not None for column in self.columns)
        return (
            f"{done} text{'' if done == 1 else 's'} of {self.plain.name}, one after another on this machine."
        )


def _checked(prompt: str, tokens: float) -> int:
    """The number of tokens; ``ValueError`` for what is not taken here."""
    bounds = limits.current()
    check_prompt(prompt, int(tokens))
    if len(prompt) > bounds.prompt_characters:
        raise ValueError(
            f"the prompt has {len(prompt):,} characters; at most {bounds.prompt_characters:,} are taken here"
        )
    if tokens > bounds.text_tokens:
        raise ValueError(
            f"{tokens:,.0f} tokens are asked for; at most {bounds.text_tokens:,} are written here"
        )
    return int(tokens)


def _place(where: str, surveyed: str, asked: Budget) -> str:
    """Where the model is: as named, or as the visitor's own survey has it."""
    if where.strip():
        return where.strip()
    if asked.which != OWN:
        raise NothingChosenError(NO_MODEL)
    return surveyed.strip() or asked.bought().survey.head.model


def _commands(place: str, options: Sequence[str], prompt: str, tokens: int) -> list[str]:
    """The same in a terminal; each of ``options`` names a scheme or a recipe."""
    base = f"explorer run {shlex.quote(place)}"
    rest = f"--prompt {shlex.quote(prompt)} --tokens {tokens}"
    return [f"{base} {option} {rest} --compare" for option in options] or [f"{base} {rest}"]


def _scheme(recipe: object) -> str:
    return f"--scheme {shlex.quote(str(recipe))}"


def build(page: Page, surveyed: Sequence[Control]) -> None:
    """Lay the section out. ``surveyed``: the survey's box of a model, and the controls of its budget."""
    bounds = limits.current()
    heading("Run", "one prompt, continued by the original and by what quantization makes of it")
    prompt = gr.Textbox(
        USUAL_PROMPT,
        label="Prompt",
        lines=2,
        max_lines=8,
        max_length=bounds.prompt_characters,
        elem_id="run-prompt",
    )
    with gr.Row(elem_classes="stacked"):
        where = gr.Textbox(
            "",
            label="Model: folder or Hub id",
            info="Empty: the model of your own survey above.",
            placeholder=EXAMPLE,
            max_lines=1,
            elem_id="run-model",
        )
        which = gr.CheckboxGroup(
            [(words, name) for name, words in COLUMNS.items()],
            value=list(USUAL_COLUMNS),
            label="Columns",
            elem_id="run-columns",
        )
        tokens = gr.Slider(
            1,
            bounds.text_tokens,
            value=USUAL_TOKENS,
            step=1,
            label="Tokens",
            elem_id="run-tokens",
        )
    with gr.Row():
        start = gr.Button("Run", variant="primary", min_width=120, elem_id="run-start")
        stop = stop_button()
    status = block(html.status("Not run yet."), elem_id="run-status")
    stopped = block(elem_id="run-stopped")
    view = TextsView(
        status=status,
        source=block(elem_id="run-source"),
        texts=block(elem_id="run-texts", js_on_load="explorer.texts(element)"),
        command=block(elem_id="run-command"),
        live=gr.State(False),
    )
    page.when_seen(recorded_run, [view.live], view, api_name="recorded_run", api_visibility="undocumented")
    buttons = RunButtons((start,), stop, stopped)
    buttons.begin_on(start.click, where.submit)
    inputs = [where, prompt, tokens, which, *page.pair, *surveyed]
    running = [
        listen(
            event,
            write,
            inputs,
            view,
            api_name=name,
            concurrency_id="compute",
            **WAITS,
            show_progress_on=stopped,
        )
        for event, name in ((start.click, "run_model"), (where.submit, "run_model_by_key"))
    ]
    buttons.end_with(*running, message=STOPPED)
    page.keep("columns", which, which.change, visit=False)
    # On a public page a prompt is in no address: addresses are logged, and sent to others.
    page.keep(
        "prompt",
        prompt,
        *(() if bounds.hosted else (prompt.blur, start.click)),
        visit=False,
        most=MOST_LINKED,
    )
