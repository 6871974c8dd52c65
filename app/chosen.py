"""What the visitor does, and what the page shows then: the only writer of what is chosen.

The page's script sends acts (``app.state.record``), one request after another. ``choose`` makes the next
record of them and computes all that names it; only then the page's bar, panels, address, words and figures
change, together. What cannot be shown changes nothing: the line below the bar says why, and the script puts
the controls back to what they held.
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable, Generator, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Self, TypeVar

import gradio as gr

from app import limits
from app.link import Kept, visited
from app.parts import html
from app.parts.page import Page
from app.parts.scheme_controls import SchemeView, show_scheme, show_second
from app.parts.tensor_controls import TensorControls, tensor_view
from app.parts.views import Control, Shown, View, listen, page_words, shows
from app.parts.widgets import LATEST, PRIVATE, TOGETHER, hidden
from app.sections.answer import AnswerView, answered, of_sampled_tensor, of_tensor, sampled
from app.sections.overview import TensorView, element_of, place_of, words_of, words_of_sample
from app.sections.speed_machines import OpenedRecordings
from app.serving.sessions import current_session
from app.serving.work import FILLING, OvertakenError, first_numbers, overtake
from app.state.analyses import Pairs, analyses_of, analysing, each, loading, output_sqnr, reading
from app.state.estimates import Estimated, estimated
from app.state.record import (
    Act,
    Acts,
    FileRefusedError,
    Record,
    first_of_file,
    goal_now,
    keeping_goal,
    next_record,
    of_file,
    shape_of,
    without_implied_goal,
)
from app.state.selection import NothingChosenError, file_source, is_read, tensor_key
from explorer import words
from explorer.progress import Progress
from explorer.sources.tensors import Matrix

Result = TypeVar("Result")
CHOOSING = "choosing"
"""The kind of work that the script gives up for acts that follow."""
_SAMPLE = "Quantizing a sample"
STILL = "Still shown: the previous view."


@dataclass(frozen=True)
class RecordView(View):
    """The hidden components of a ``Record``."""

    source: Shown
    sample: Shown
    file: Shown
    file_tensor: Shown
    model: Shown
    revision: Shown
    layer: Shown
    scheme: Shown
    second: Shown
    element: Shown
    goal: Shown
    shortlist: Shown


@dataclass(frozen=True)
class ChosenView(View):
    """All that names what is chosen.

    answer: for the page's script, as JSON: the ``number`` of the request that was done, the ``record``, what
    the controls hold for it (``held``, null where that is as before), and the keys that the address is to
    lose (``dropped``); {"number": …, "sampled": record} while the numbers of a sample of that record are
    shown; {"refused": …, "why": …} for one that was refused. notice: the line that lies over
    the page. record, tensor, first, second, kept: what is chosen, and the controls. answered: the first
    screen. shown: the bar, the words below that screen, and the element. Figures further down follow when
    they are seen.
    """

    begins: ClassVar[str | None] = "(...values) => explorer.send(values)"
    answer: Shown
    notice: Shown
    record: RecordView
    tensor: TensorControls
    first: SchemeView
    second: SchemeView
    kept: Kept
    answered: AnswerView
    shown: TensorView

    @property
    def of_sample(self) -> bool:
        """True of a view that shows estimates while the rest is computed."""
        return isinstance(self.answer, str) and isinstance(json.loads(self.answer).get("sampled"), dict)

    @classmethod
    def refused(cls, message: str) -> Self:
        return cls.unchanged(
            answer=json.dumps({"refused": uuid.uuid4().hex, "why": message}),
            notice=html.notice(f"{message}. {STILL}"),
        )


@shows(ChosenView, overtaken=CHOOSING, seen=True)
def choose(
    acts: str, upload: str | None, held: Record, opened: OpenedRecordings = ()
) -> Iterator[ChosenView]:
    """Do ``acts`` (JSON, see ``app.state.record.Acts``) from the record that is ``held``, and show what is
    chosen then, by all that is known of it. ``upload``: the file in the file control; ``opened``: the
    recordings that the visitor opened.

    A goal that cannot be is said and left out, where the request has other acts: those were done before it.
    """
    asked, estimates = Acts.read(acts), False
    try:
        for view in _chosen(asked, upload, held, opened):
            estimates = estimates or view.of_sample
            yield view
    except OvertakenError:  # the script sends these acts again, with those that followed
        answer = json.dumps({"number": asked.number, "overtaken": True, "sampled": estimates})
        yield ChosenView.unchanged(answer=answer, notice="")
    except Exception:  # of every kind, and raised again: what estimates have replaced comes back first
        if not asked.whole:
            yield from _restored(held, asked.everything, estimates or asked.sampled)
        raise


def _chosen(asked: Acts, upload: str | None, held: Record, opened: OpenedRecordings) -> Iterator[ChosenView]:
    if asked.looks and not asked.whole:
        yield _looked(asked, held)
        return
    wanted, kept, missing, dropped = held, None, "", tuple[str, ...]()
    left_out: list[str] = []
    try:
        for act in asked.acts:
            if act.get("do") == "visit":
                query = str(act.get("query") or "")
                there = visited(query, wanted, upload, asked.whole, opened or ())
                wanted, kept = there.record, there.kept
                missing, dropped = there.missing, there.dropped
            else:
                try:
                    wanted = yield from _after(asked, held, wanted, act, upload)
                except ValueError as error:
                    left_out.append(str(error))
                    if act.get("do") != "goal" or len(left_out) == len(asked.acts):
                        raise
        found = yield from _analysing_file(asked, held, wanted, asked.whole or kept is not None)
    except (ValueError, OSError) as error:
        if isinstance(error, NothingChosenError):
            raise
        if not asked.whole:
            of_a_file = any(act.get("do") == "file" for act in asked.acts)
            raise (FileRefusedError(str(error)) if of_a_file else error) from error
        wanted = Record.fresh()
        missing = f"This link cannot be shown: {page_words(str(error))}. Shown instead: a built-in tensor"
        found = yield from _analysing(asked, held, wanted, anew=True)
    wanted = _with_goal(held, _inside(wanted, found[1][0][1].q.shape), asked.whole or kept is not None)
    for why in left_out:
        limits.notify(why)
    if not _asks_the_same(wanted, held):
        overtake(current_session(), FILLING)
    outputs = output_sqnr(wanted, found[1])
    first = answered(wanted, found, outputs, asked.everything)
    if _another_tensor(asked, held, wanted):
        first |= of_tensor(wanted, found)
    if not asked.whole and not asked.sampled and _shows_the_same(wanted, held):
        moved = wanted.element != held.element
        shown = TensorView.unchanged(**(element_of(wanted, found) if moved else {}))
    else:
        shown = TensorView.unchanged(**words_of(*found, outputs), **place_of(wanted, found))
    view = AnswerView.unchanged(**first)
    yield _committed(asked, held, wanted, kept, view, shown, missing, dropped)


def _restored(held: Record, everything: bool, estimates: bool) -> Iterator[ChosenView]:
    """``_as_held`` where this request has shown ``estimates``, or one before it that was overtaken.
    Nothing of a tensor that can no longer be read: the refusal of the request itself is what is said."""
    try:
        if estimates:
            yield _as_held(held, everything)
    except (ValueError, OSError):
        return


def _as_held(held: Record, everything: bool) -> ChosenView:
    """What estimates have taken the place of, again; ``everything``: the frontier is not cropped."""
    found = analyses_of(held)
    outputs = output_sqnr(held, found[1])
    first = answered(held, found, outputs, everything) | of_tensor(held, found)
    words = words_of(*found, outputs)
    return ChosenView.unchanged(answered=AnswerView.unchanged(**first), shown=TensorView.unchanged(**words))


def _another_tensor(asked: Acts, held: Record, wanted: Record) -> bool:
    """True if what is shown of ``held``, if anything is, may be of another tensor than ``wanted``."""
    return asked.whole or asked.sampled or tensor_key(wanted) != tensor_key(held)


def _sampled(
    asked: Acts, held: Record, find: Callable[[], Record], what: str, anew: bool = False
) -> Iterator[ChosenView]:
    """The numbers of a sample of what ``find`` returns, where the whole tensor takes longer, by the goal of
    ``held``, if it is not chosen ``anew``; ``what`` is said meanwhile. All that names the tensor is of the
    same one: what no sample shows is blank until the whole's is there, further down by the page's script.
    Nothing where they cannot be had, for whatever reason: what the whole tensor meets then is said."""

    def seen(_: Progress) -> tuple[Record, Estimated | None]:
        with first_numbers():
            wanted = find()
            return wanted, estimated(wanted)

    try:
        wanted, found = yield from _said(loading(what, seen))
        if found is None:
            return
        wanted = wanted if anew else keeping_goal(held, wanted, found.shape)
        first = sampled(wanted, found, asked.everything)
        if _another_tensor(asked, held, wanted):
            first |= of_sampled_tensor(wanted, found)
    except (ValueError, OSError):
        return
    yield ChosenView.unchanged(
        answer=json.dumps({"number": asked.number, "sampled": _fields(wanted)}),
        answered=AnswerView.unchanged(**first),
        shown=TensorView.unchanged(**words_of_sample(found)),
    )


def give_up(request: gr.Request) -> None:
    """End what this visitor's ``choose`` computes: other acts follow."""
    overtake(request.session_hash, CHOOSING)


def _after(
    asked: Acts, shown: Record, held: Record, act: Act, upload: str | None
) -> Generator[ChosenView, None, Record]:
    """``next_record`` of ``held``, while the page shows ``shown``; what opens a file or a model says so in
    the line over the page."""
    opens = {
        "file": f"Opening {Path(upload or '').name}",
        "model": f"Listing the layers of {act.get('model')}",
    }
    what = opens.get(str(act.get("do")))
    if what is None:
        return next_record(held, act, upload)
    yield ChosenView.unchanged(notice="")  # why the one before was refused
    what = words.plain(what, 80)
    if act.get("do") == "file" and upload:
        yield from _sampled(asked, shown, lambda: first_of_file(held, upload), what)
    return (yield from _said(loading(what, lambda _: next_record(held, act, upload))))


def _said(steps: Generator[str, None, Result]) -> Generator[ChosenView, None, Result]:
    """What ``steps`` say, in the line over the page."""
    return (yield from each(steps, lambda said: ChosenView.unchanged(notice=html.notice(said))))


def _looked(asked: Acts, held: Record) -> ChosenView:
    """The first screen of what is shown, by all that is known of it by now."""
    found = analyses_of(held)
    first = answered(held, found, output_sqnr(held, found[1]), asked.everything)
    del first["goals"]  # a size may be being typed
    return ChosenView.unchanged(
        answer=json.dumps({"number": asked.number}), answered=AnswerView.unchanged(**first)
    )


def _with_goal(held: Record, wanted: Record, visits: bool) -> Record:
    """The record with a goal that its tensor can have: a size that nothing fits is taken away, and said."""
    try:
        goal_now(wanted, shape_of(wanted))
    except ValueError as error:
        limits.notify(f"{error}; the usual goal instead")
        return dataclasses.replace(wanted, goal="", shortlist="")
    return without_implied_goal(wanted if visits else keeping_goal(held, wanted, shape_of(wanted)))


def _analysing(
    asked: Acts, held: Record, chosen: Record, anew: bool
) -> Generator[ChosenView, None, tuple[Matrix, Pairs]]:
    """``analysing``, its words in the line over the page, after the numbers of a sample (``_sampled``)."""
    yield from _sampled(asked, held, lambda: chosen, _SAMPLE, anew)
    if not is_read(chosen):
        yield from _said(reading(chosen))
        yield from _sampled(asked, held, lambda: chosen, _SAMPLE, anew)  # of what the file gives no part of
    return (yield from _said(analysing(chosen)))


def _analysing_file(
    asked: Acts, held: Record, wanted: Record, anew: bool
) -> Generator[ChosenView, None, tuple[Matrix, Pairs]]:
    """``_analysing``; what cannot be computed of another file or tensor than the one ``held`` names it.
    ``anew``: the goal is not kept."""
    try:
        return (yield from _analysing(asked, held, wanted, anew))
    except ValueError as error:
        if wanted.source != "file" or not wanted.file or tensor_key(wanted) == tensor_key(held):
            raise
        name = Path(wanted.file).name
        several = len(file_source(wanted.file).infos) > 1
        refused = of_file(wanted.file, str(error), wanted.file_tensor if several else None)
        raise error if str(error).startswith(name) else refused from error


def _inside(chosen: Record, shape: tuple[int, int]) -> Record:
    """The record with its element in a matrix of ``shape``: the nearest one, and a message about that."""
    if chosen.position is None:
        return chosen
    row, column = (min(max(at, 0), size - 1) for at, size in zip(chosen.position, shape, strict=True))
    if (row, column) == chosen.position:
        return chosen
    limits.notify(
        f"The tensor has rows 0 to {shape[0] - 1} and columns 0 to {shape[1] - 1}; showing ({row}, {column})"
    )
    return dataclasses.replace(chosen, element=f"{row},{column}")


def _shows_the_same(one: Record, other: Record) -> bool:
    """True if two records are of the same tensor under the same schemes."""
    return tensor_key(one) == tensor_key(other) and one.schemes == other.schemes


def _asks_the_same(one: Record, other: Record) -> bool:
    """True if the same rows are computed for two records."""
    return _shows_the_same(one, other) and (one.goal, one.shortlist) == (other.goal, other.shortlist)


def _committed(
    asked: Acts,
    held: Record,
    wanted: Record,
    kept: Kept | None,
    first: AnswerView,
    shown: TensorView,
    missing: str,
    dropped: tuple[str, ...],
) -> ChosenView:
    """The record, and the controls of what has changed; what is being typed elsewhere stays."""
    anew, fields = asked.whole or kept is not None, _fields(wanted)
    return ChosenView(
        answer=json.dumps(
            {"number": asked.number, "record": fields, "held": _held(wanted, shown), "dropped": dropped}
        ),
        notice=html.notice(f"{missing}.") if missing else "",
        record=RecordView(**fields | {"file": wanted.file}),
        tensor=tensor_view(wanted)
        if anew or tensor_key(wanted) != tensor_key(held) or wanted.source != held.source
        else TensorControls.unchanged(),
        first=show_second(wanted.scheme) if anew or wanted.scheme != held.scheme else SchemeView.unchanged(),
        second=show_second(wanted.second) if anew or wanted.second != held.second else SchemeView.unchanged(),
        kept=kept or Kept.unchanged(),
        answered=first,
        shown=shown,
    )


def _fields(chosen: Record) -> dict[str, str]:
    """The record as the page's script takes it."""
    return {name: value if value is not None else "" for name, value in vars(chosen).items()}


def _held(chosen: Record, shown: TensorView) -> list[Any]:
    """What the controls hold for a record, in their order, None for what another source has."""
    tensor = {
        name: getattr(chosen, name) or None for name in (f.name for f in dataclasses.fields(TensorControls))
    }
    tensor["file"] = None  # the control holds an upload; the record's path on the server is none
    if chosen.source != "builtin":
        tensor["sample"] = None
    pair = [show_scheme(text) if text else None for text in (chosen.scheme, chosen.second)]
    size = len(dataclasses.fields(SchemeView))
    parts = [value for view in pair for value in (_values(view) if view else ["", *[None] * (size - 1)])]
    where = [getattr(shown, name) for name in ("row", "column", "follow")]
    where = [None if isinstance(value, dict) else value for value in where]  # an update that changes nothing
    return [*tensor.values(), *parts, *where]


def _values(view: SchemeView) -> list[Any]:
    *parts, seed = view.parts()
    return [view.preset, *parts, str(seed)]  # the seed's control holds a text


def build(page: Page, blocks: gr.Blocks, first: AnswerView, view: TensorView) -> None:
    """Wire the one way in which what is chosen changes; ``first``: the first screen, ``view``: what else
    shows the tensor."""
    acts = gr.Textbox(visible=False, label="acts", max_lines=1)
    answer = hidden("explorer.onAnswer(props, watch)")
    kept = Kept(**{"target" if key == "for" else key: control for key, control in page.kept.items()})
    outputs = ChosenView(
        answer=answer,
        notice=page.notice,
        record=RecordView(*page.record),
        tensor=page.bar.tensor,
        first=page.bar.scheme,
        second=page.bar.second,
        kept=kept,
        answered=first,
        shown=view,
    )
    sender: Any = hidden("explorer.onActs(() => trigger('acts'))")
    chosen = listen(
        sender.acts,
        choose,
        [acts, page.bar.tensor.file, *page.record, page.opened_recordings],
        outputs,
        api_name="choose",
        api_visibility="undocumented",
        **TOGETHER,
        **LATEST,
    )
    other: Any = hidden("explorer.onOvertake(() => trigger('overtaken'))")
    other.overtaken(give_up, None, None, queue=False, trigger_mode="multiple", **PRIVATE)
    controls: list[Control] = [
        *page.bar.tensor.in_order(),
        *page.bar.scheme.in_order(),
        *page.bar.second.in_order(),
        *page.position,
    ]
    chosen.then(None, controls, controls, js="(...held) => explorer.settled(held)", **PRIVATE)
    # After an error Gradio's script runs what follows a failure, and not what follows in any case.
    chosen.failure(None, controls, controls, js="(...held) => explorer.failed(held)", **PRIVATE)
    restorer: Any = hidden("explorer.onRestore(() => trigger('restore'))")
    restorer.restore(None, controls, controls, js="(...held) => explorer.restored(held)", **PRIVATE)
    blocks.load(None, None, None, js="() => explorer.begin()", **PRIVATE)
