"""Run: one prompt, continued by the model in the bar and by what schemes or its survey's recipe make of
it."""

from __future__ import annotations

import dataclasses
import shlex
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import ExitStack
from typing import TypeVar

from markupsafe import Markup

from app import limits
from app.parts import cache_capture, html
from app.parts.controls import IntegerInput, MultiSelect, TextInput
from app.parts.section import Section, Shown
from app.parts.texts import ORIGINAL, TextColumn, texts
from app.sections import budget, subject
from app.serving.work import LeftError, OvertakenError
from app.state.analyses import each, loading
from app.state.gpu_lock import WAITS, Room, gpu_lock, in_room, locked_steps
from app.state.models import bytes_of_work, check_runnable
from app.state.query import Query
from app.state.selection import NothingChosenError
from app.state.visits import visit
from explorer.core.backend import work_device
from explorer.methods.recipe import Recipe
from explorer.models.capture import check_runs
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
MOST_LINKED = 200
"""Characters of a prompt that a link holds."""
SHOWN_EVERY_S = 0.1
EXAMPLE = "HuggingFaceTB/SmolLM2-135M-Instruct"
NO_MODEL = f"open a causal language model in the bar: a Hub id such as {EXAMPLE}, or on a local page a folder"
HOSTED_ENGINE = "a public page runs torch alone"
PROMPT = TextInput(
    key="prompt",
    label="Prompt",
    usual=USUAL_PROMPT,
    lines=2,
    most=limits.LOCAL.prompt_characters,
    linked=MOST_LINKED,
)
WHICH = MultiSelect(key="columns", label="Columns", usual=f"{ORIGINAL},a,b", options=COLUMNS)
TOKENS = IntegerInput(
    key="tokens",
    label="Tokens",
    usual=str(USUAL_TOKENS),
    low=1,
    high=limits.LOCAL.text_tokens,
    slider=True,
)
Result = TypeVar("Result")


def view(query: Query) -> Shown:
    """Show the texts of the visitor's last run, if it was of the model in the bar, or the recorded run."""
    written = visit().written
    return written[1] if written is not None and written[0] == _model(query) else _recorded()


def _model(query: Query) -> tuple[str, ...]:
    return tuple(query.get(key, "").strip() for key in subject.KEYS)


def _recorded() -> Shown:
    """The recorded run: whose it is, its texts, and the commands that write them; nothing without one."""
    recording = recorded_texts()
    if not recording:
        return dict.fromkeys(("source", "texts", "command"), "")
    columns = []
    for one in recording.rows:
        label = label_of_text(one.scheme) if one.scheme else COLUMNS[ORIGINAL]
        columns.append(TextColumn(one.scheme or ORIGINAL, label, mark=html.short_name(label), transcript=one))
    first, second = recording.rows[:2]
    options = [_scheme(second.scheme)]
    runs = limits.current().sources.runs
    example = EXAMPLE if runs is None or EXAMPLE in runs else runs[0]
    which = "a model" if runs is None else f"a model that this page runs, such as {example},"
    said = (
        f"A recorded run of {first.model}, {recording.source}. Open {which} in the bar for one of your own."
    )
    return {
        "source": html.sentence(said),
        "texts": texts(first.prompt, columns),
        "command": html.commands(
            [
                "pip install 'quantization-explorer[run]'",
                f"hf download {EXAMPLE}",
                *_commands(EXAMPLE, options, first.prompt, first.figures.tokens),
            ]
        ),
    }


def write(query: Query) -> Iterator[Shown]:
    """Continue the prompt by the chosen columns: the model in the bar, A and B and its survey's recipe of it.
    One after another, so that each has the machine to itself. Yields the texts as they come; stopping keeps
    what is there."""
    prompt, count = _checked(query)
    schemes = {"a": query.record.scheme, "b": query.record.second}
    names = [name for name in COLUMNS if name in WHICH.taken(query) and schemes.get(name, "-")]
    if not names:
        raise ValueError("choose at least one column; B needs a scheme B")
    model = subject.subject(query)
    if not model.named and model.which != subject.OWN:
        raise NothingChosenError(NO_MODEL)
    check_runs(model.place, model.revision, limits.current().sources)
    check_runnable(model.place, model.revision)
    opened = subject_of(model.place, None, model.revision or None, limits.current().sources)
    run = _Run(opened, prompt, count, _model(query))
    for name in names:
        run.add(name, schemes.get(name, ""), query)
    try:
        yield from in_room(run.size, run.steps, run.view(WAITS))
    except (LeftError, OvertakenError):
        raise
    except StoppedError:
        limit = f"the time limit of a run here, {limits.current().run_seconds:.0f} s"
        yield run.view(f"Stopped: {limit}. What was written and measured is kept.")


class _Run:
    """A run of one model: its columns, filled one after another."""

    def __init__(self, plain: Subject, prompt: str, tokens: int, model: tuple[str, ...]) -> None:
        self.plain, self.prompt, self.tokens, self.model = plain, prompt, tokens, model
        self.columns: list[TextColumn] = []
        self._recipes: dict[str, Recipe | ModelRecipe | None] = {ORIGINAL: None}
        self.size = 0
        """Bytes of memory that the run takes."""
        self._visit = visit()

    def add(self, name: str, scheme: str, query: Query) -> None:
        """Add a column of ``COLUMNS``, of a scheme or of what the survey's budget buys; one that cannot be
        made says why."""
        column = TextColumn(name, COLUMNS[name], name.upper(), "waits for its turn")
        self.columns.append(column)
        try:
            if name == RECIPE:
                column.mark = "recipe"
                self._recipes[name] = recipe = budget.plan_of(query).recipe
                column.label = f"The survey's recipe, {recipe.bits or 0:.2f} bits"
            elif name != ORIGINAL:
                self._recipes[name] = parsed = Recipe.parse(scheme)
                column.label = parsed.label
            needed = bytes_of_work(self.plain.place, self.plain.revision or "", self._recipes[name])
            self.size = max(self.size, needed)
        except ValueError as error:
            column.state, column.error = "", str(error)

    def steps(self, room: Room) -> Generator[Shown, None, None]:
        """What is shown, from waiting columns to whole ones; its threads use ``room``."""
        self._room = room
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
        done = sum(column.transcript is not None for column in self.columns)
        if not done:
            raise ValueError("; ".join(f"{column.label}: {column.error}" for column in self.columns))
        many = "" if done == 1 else "s"
        yield self.view(f"{done} text{many} of {self.plain.name}, one after another on this machine.")

    def view(self, status: str) -> Shown:
        """The columns as they are; before the first token those of the run before stay."""
        if not any(column.transcript for column in self.columns):
            return {"status": Markup('<div class="opening">{}</div>').format(html.status(status))}
        shown = [c for c in self.columns if self._recipes.get(c.name)]
        options = [
            "--recipe recipe.json" if c.name == RECIPE else _scheme(self._recipes[c.name]) for c in shown
        ]
        written = {
            "source": "",
            "texts": texts(self.prompt, self.columns),
            "command": html.commands(_commands(self.plain.place, options, self.prompt, self.tokens)),
        }
        self._visit.written = self.model, written
        return {"status": html.status(status), **written}

    def _opened(self, column: TextColumn) -> Generator[Shown, None, Engine | None]:
        """The column's engine; None, and its column says why, where there is none."""
        recipe, plain = self._recipes[column.name], self.plain
        bounds, room = limits.current(), self.tokens + len(self.prompt.encode()) + 16

        def load(progress: Progress) -> Engine:
            own = plain
            if recipe is not None:
                own = subject_of(plain.place, recipe, plain.revision, bounds.sources)
            with gpu_lock():
                name = TorchEngine.name if bounds.hosted else AUTO
                engine = open_engine(own, name, work_device(), progress=progress, room=room)
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

    def _written(self, column: TextColumn, writing: Writing, original: Writing | None) -> Iterator[Shown]:
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

    def _compared(self, column: TextColumn, original: Writing, writing: Writing) -> Iterator[Shown]:
        def hold(progress: Progress) -> Comparison:
            with gpu_lock():
                return compare(original, writing, work_device())

        compared = yield from self._told(column, "Comparing", hold)
        assert column.transcript is not None
        column.transcript = dataclasses.replace(column.transcript, comparison=compared)

    def _told(
        self, column: TextColumn, what: str, work: Callable[[Progress], Result]
    ) -> Generator[Shown, None, Result]:
        """The result of ``work``; says how far it is in the column."""

        def say(words: str) -> Shown:
            column.state = words
            return self.view(f"{column.label}: {words}")

        return (yield from each(loading(what, work, self._room), say))


def _checked(query: Query) -> tuple[str, int]:
    """Prompt and number of tokens; ``ValueError`` for what is not taken here."""
    bounds = limits.current()
    prompt, tokens = PROMPT.taken(query), TOKENS.taken(query)
    check_prompt(prompt, tokens)
    if len(prompt) > bounds.prompt_characters:
        raise ValueError(
            f"the prompt has {len(prompt):,} characters; at most {bounds.prompt_characters:,} are taken here"
        )
    if tokens > bounds.text_tokens:
        raise ValueError(f"{tokens:,} tokens are asked for; at most {bounds.text_tokens:,} are written here")
    return prompt, tokens


def _commands(place: str, options: Sequence[str], prompt: str, tokens: int) -> list[str]:
    """The same in a terminal; each of ``options`` names a scheme or a recipe."""
    base = f"explorer run {shlex.quote(place)}"
    rest = f"--prompt {shlex.quote(prompt)} --tokens {tokens}"
    return [f"{base} {option} {rest} --compare" for option in options] or [f"{base} {rest}"]


def _scheme(recipe: object) -> str:
    return f"--scheme {shlex.quote(str(recipe))}"


SECTION = Section(
    name="run",
    title="Run",
    follows=(*subject.KEYS, "scheme", "second", *(control.key for control in budget.CONTROLS)),
    controls=(PROMPT, WHICH, TOKENS, cache_capture.TEXT, cache_capture.KEPT),
    view=view,
    runs={"write": write, "cache": cache_capture.capture},
    workers=1,
    script="explorer.texts",
    shares={"bounds": limits.current, "most_linked": MOST_LINKED},
)
