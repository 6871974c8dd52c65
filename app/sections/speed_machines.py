"""The machines whose numbers the Speed section shows: those recorded, those of files that a visitor opened,
and this one."""

from __future__ import annotations

import hashlib
import json
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Self

import gradio as gr

from app import limits
from app.parts import html
from app.parts.views import Shown, StatusView, shows
from app.sections.speed_live import Own
from app.state.record import FileRefusedError
from app.state.visits import OpenedRecording
from explorer import words
from explorer.bench.cpu_gemm import DECODE_ON_CPU, PREFILL_ON_CPU
from explorer.core.backend import gpu_device
from explorer.cpu.products import product_of
from explorer.products.shapes import DECODE, LARGE, SQUARE
from explorer.recordings.files import Recording, RecordingError, recording_json
from explorer.recordings.gemm import (
    LATER_NAME,
    LAYERS_NAME,
    GemmTiming,
    Shape,
    gemms_by_machine,
    gemms_of_text,
    recorded_gemms,
    runs_of_gemms,
)
from explorer.recordings.machine import Machine

RECORDED, LIVE, OPENED = "recorded", "live", "opened-"
"""The machine whose recordings ship; the visitor's own run; what the names of recordings begin with that the
visitor opened. Others have the names of ``gemms_by_machine``."""
NAMED = 6
"""Products that are named where there may be more."""
LONGEST_FILE = 60
"""Characters of a file's name that are said."""
ACCEPTED = (
    "Accepted is a JSON file of matrix products: what explorer bench gemm --record-to FILE writes, or what "
    "Download JSON in this section does"
)


OpenedRecordings = tuple[OpenedRecording, ...]
"""Recordings that a visitor opened, in the order in which they were."""


def machine_of(view: str, own: Own | None, opened: OpenedRecordings = ()) -> Own:
    """Whose numbers: those of the GPU whose recordings ship, the visitor's own, or those of the machine that
    ``view`` names. ``ValueError`` for one that is not recorded, or not open."""
    if view == RECORDED:
        return recorded_gemms()
    if view == LIVE:
        return own or Recording(Machine(), ())
    machines = {**gemms_by_machine(), **{one.name: one.recording for one in opened}}
    if view in machines:
        return machines[view]
    if is_opened(view):
        raise ValueError("the recording is not open any more: open its file again")
    raise ValueError(f"no machine {view[:60]!r} is recorded; there are {', '.join(machines) or 'none'}")


def is_of_cpu(view: str, own: Own | None, opened: OpenedRecordings = ()) -> bool:
    """True where the machine that ``view`` names is a CPU; what will be measured here is where there is no
    GPU."""
    recording = machine_of(view, own, opened)
    if not recording:
        return view == LIVE and gpu_device() is None
    return any(timing.on_cpu for timing in recording.rows)


def is_opened(name: str) -> bool:
    """True for the name of a recording that a visitor opened."""
    return name.startswith(OPENED)


def is_missing(name: str, opened: OpenedRecordings) -> bool:
    """True for the name of a recording that a visitor opened, but not here, or not any more."""
    return is_opened(name) and all(one.name != name for one in opened)


def choices(opened: OpenedRecordings = ()) -> list[tuple[str, str]]:
    """Whose numbers can be shown, as labels and names: of the machine whose recordings ship, of other
    machines, of this one. Recordings of one machine are told apart by their dates and what they hold."""
    recorded = {RECORDED: shipped(), **_others()}
    chips = {name: recorded_chip() if name == RECORDED else _chip(one) for name, one in recorded.items()}
    alike, said = Counter(chips.values()), []
    for name, chip in chips.items():
        which = f", {_holding(name, recorded[name])}" if alike[chip] > 1 else ""
        said.append((f"Recorded on {chip}{which}", name))
    mine = [(f"Opened: {label}", name) for label, name in opened_choices(opened)]
    return [*said, *mine, ("Measured here", LIVE)]


def opened_choices(opened: OpenedRecordings) -> list[tuple[str, str]]:
    """Labels and names of what is open: chip and date; where these are the same also the file, and the number
    among files of one name."""
    labels = [opened_words(one.recording.machine) for one in opened]
    alike = Counter(labels)
    labels = [
        f"{label}, {words.plain(one.file, LONGEST_FILE)}" if alike[label] > 1 else label
        for label, one in zip(labels, opened, strict=True)
    ]
    alike, seen = Counter(labels), Counter[str]()
    said = []
    for label, one in zip(labels, opened, strict=True):
        seen[label] += 1
        said.append((f"{label} ({seen[label]})" if alike[label] > 1 else label, one.name))
    return said


def shapes_of(timings: Sequence[GemmTiming]) -> dict[str, Shape]:
    """The shapes of a recording as text, the most telling first."""
    sizes = {timing.shape_text: timing.shape for timing in timings}
    telling = (SQUARE, DECODE, LARGE, DECODE_ON_CPU, PREFILL_ON_CPU)
    first = [text for text, shape in sizes.items() if shape in telling]
    first.sort(key=lambda text: telling.index(sizes[text]))
    return {text: sizes[text] for text in dict.fromkeys([*first, *sizes])}


@dataclass(frozen=True)
class OpenedView(StatusView):
    """What is open: a status, all recordings, the picker that shows one, the picker of the shape, the list of
    what can be removed with its button, and the file control, which is free for the next file each time."""

    opened: Shown
    view: Shown
    shape: Shown
    listed: Shown
    remove: Shown
    file: Shown

    @classmethod
    def refused(cls, message: str) -> Self:
        return cls.unchanged(status=html.status(message), file=None)


@shows(OpenedView)
def open_recording(path: str | None, shape: str | None, opened: OpenedRecordings) -> OpenedView:
    """Open a visitor's recording as one more machine, which is shown, at its own first shape unless it has
    the one that is shown now; ``FileRefusedError`` says what is wrong with the file and what is accepted."""
    if not path:
        return OpenedView.unchanged()
    found, left_out = _read(Path(path))
    file, bounds = words.plain(Path(path).name, LONGEST_FILE), limits.current()
    if all(one.name != found.name for one in opened):
        if len(opened) >= bounds.recordings:
            raise FileRefusedError(
                f"{file} was not opened: {bounds.recordings} recordings are open, as many as may be. Remove "
                "one first"
            )
        opened = (*opened, found)
    timings = (
        f"{words.count(len(found.recording.rows))} timing{'' if len(found.recording.rows) == 1 else 's'}"
    )
    told = f"Opened: {file}, {timings} on {words.plain(found.recording.machine.describe(), 400)}."
    shapes = list(shapes_of(found.recording.rows))
    return OpenedView(
        status=html.status(" ".join(filter(None, (told, left_out, "Only you see it.")))),
        opened=opened,
        view=gr.update(choices=choices(opened), value=found.name),
        shape=gr.skip() if shape in shapes else gr.update(choices=shapes, value=shapes[0]),
        **_list_of(opened, found.name),
        file=None,
    )


@shows(OpenedView)
def remove_recording(name: str | None, view: str, opened: OpenedRecordings) -> OpenedView:
    """Close the recording ``name``; where it is the one that is shown (``view``), the machine whose
    recordings ship is shown again."""
    labels = {one: label for label, one in opened_choices(opened)}
    if name not in labels:
        raise ValueError("choose which recording to remove")
    rest = tuple(one for one in opened if one.name != name)
    return OpenedView.unchanged(
        status=html.status(f"Removed: {labels[name]}."),
        opened=rest,
        view=gr.update(choices=choices(rest), value=RECORDED if view == name else view),
        **_list_of(rest, rest[-1].name if rest else None),
    )


def _list_of(opened: OpenedRecordings, value: str | None) -> dict[str, Any]:
    """The list of what is open and its button, which are there only while something is."""
    return {
        "listed": gr.update(choices=opened_choices(opened), value=value, visible=bool(opened)),
        "remove": gr.update(visible=bool(opened)),
    }


def _read(path: Path) -> tuple[OpenedRecording, str]:
    """The recording in a file, with the names of products that today's tables have, and in words what is left
    out of it: products of a newer or older version, of which nothing is known here."""
    file, most = words.plain(path.name, LONGEST_FILE), limits.current().recording_bytes
    if (size := path.stat().st_size) > most:
        raise FileRefusedError(
            f"{file} was not opened: it has {words.bytes_(size)}; a recording may have {words.bytes_(most)} "
            "here"
        )
    try:
        found = gemms_of_text(path.read_bytes())
    except RecordingError as error:
        raise FileRefusedError(f"{file} was not opened: {error}. {ACCEPTED}") from error
    known = tuple(row for row in found.rows if product_of(row.gemm, row.on_cpu))
    unknown = list(dict.fromkeys(row.gemm for row in found.rows if not product_of(row.gemm, row.on_cpu)))
    more = f" and {len(unknown) - NAMED} more" if len(unknown) > NAMED else ""
    listed = ", ".join(words.plain(name, 40) for name in unknown[:NAMED]) + more
    if not known:
        raise FileRefusedError(
            f"{file} was not opened: this version knows none of its products ({listed}). {ACCEPTED}"
        )
    own = replace(found, rows=tuple(map(_with_plain_texts, known)))
    what = f"product{'' if len(unknown) == 1 else 's'}"
    said = f"Not shown, because this version has no such {what}: {listed}." if unknown else ""
    return OpenedRecording(_name_of(own), path.name, own), said


def _name_of(recording: Own) -> str:
    text = json.dumps(recording_json(recording.machine, recording.rows), sort_keys=True)
    return OPENED + hashlib.sha256(text.encode()).hexdigest()[:10]


def _with_plain_texts(row: GemmTiming) -> GemmTiming:
    """``row`` with texts in which a figure reads no markup, and with the label that its product has here."""
    texts = ("gemm", "label", "variant", "file", "baseline", "baseline_note")
    plain: dict[str, Any] = {name: words.plain(getattr(row, name)).replace("<", "‹") for name in texts}
    known = product_of(row.gemm, row.on_cpu)
    return replace(row, **plain | ({"label": known.label} if known else {}))


def opened_words(machine: Machine) -> str:
    """A machine of an opened recording in a picker: chip and date."""
    return words.plain(", ".join(filter(None, (machine.chip, machine.date))), 60)


def recorded_chip() -> str:
    """The machine whose numbers ship, for a label; a damaged recording is reported when it is shown."""
    try:
        return _chip(recorded_gemms())
    except RecordingError:
        return "a GPU"


def shipped() -> Own:
    """The recording that ships; empty if it is damaged: that is said when it is shown."""
    try:
        return recorded_gemms()
    except RecordingError:
        return Recording(Machine(), ())


def _holding(name: str, recording: Own) -> str:
    """The date of a recording, and which shapes it has."""
    sides = {timing.shape[1:] for timing in recording.rows}
    shapes = len({timing.shape for timing in recording.rows})
    held = f"{shapes} shape{'' if shapes == 1 else 's'}"
    if name == LAYERS_NAME:
        held = "layers of models"
    elif len(sides) == 1:
        n, k = next(iter(sides))
        held = f"N = K = {n} only" if n == k else f"N = {n}, K = {k} only"
    return ": ".join(filter(None, (recording.machine.date, held)))


def why_two(view: str) -> str:
    """Why there are two recordings of the machine whose recordings ship, where ``view`` is one of them."""
    if view not in (RECORDED, LATER_NAME):
        return ""
    whole, later = runs_of_gemms()
    if later is None:
        return ""
    what = _holding(LATER_NAME, _others()[LATER_NAME]).partition(": ")[2].removesuffix(" only")
    if view == RECORDED:
        return (
            f"Products with {what} were timed again on {later.date}, with later kernels: a second recording."
        )
    return (
        f"The whole recording of this machine is of {whole.date} and an earlier commit; with later kernels "
        f"products with {what} alone were timed again."
    )


def _others() -> dict[str, Own]:
    try:
        return gemms_by_machine()
    except RecordingError:
        return {}


def _chip(recording: Own) -> str:
    """A GPU with its article, a CPU without one."""
    machine = recording.machine
    if not machine.gpu:
        return machine.chip or "a GPU"
    return f"{'an' if machine.gpu.startswith(('NVIDIA', 'AMD', 'Intel')) else 'a'} {machine.gpu}"
