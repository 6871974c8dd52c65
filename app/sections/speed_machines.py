"""Machines whose times the place Speed shows: those recorded, those of files that a visitor opened, and this
one; and the shape at which it shows them."""

from __future__ import annotations

import hashlib
import json
import math
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from app import limits
from app.serving import uploads
from app.state.memo import Memo
from app.state.query import Query
from app.state.record import FileRefusedError
from app.state.selection import matrix_of
from app.state.visits import OpenedRecording, visit
from explorer import Scheme, words
from explorer.bench.cpu_gemm import DECODE_ON_CPU, PREFILL_ON_CPU
from explorer.core.backend import gpu_device
from explorer.cpu.products import product_of, products_for
from explorer.products.advice import at_shape, nearest
from explorer.products.shapes import DECODE, LARGE, LAYERS, SQUARE
from explorer.recordings.files import Recording, RecordingError, recording_json
from explorer.recordings.gemm import (
    LATER_NAME,
    LAYERS_NAME,
    GemmTiming,
    Shape,
    gemms_by_machine,
    gemms_of_text,
    recorded_gemms,
)
from explorer.recordings.machine import Machine

Timings = Recording[GemmTiming]
NEAREST, RECORDED, LIVE, OPENED = "nearest", "recorded", "live", "opened-"
"""The GPU that has the nearest shape; the machine of ``recorded_gemms``; the visitor's own run; what names of
opened recordings begin with. Others have the names of ``gemms_by_machine``."""
OF_LAYER = {"": 1, "layer-decode": 1, "layer-prefill": 4096}
"""Texts of a shape that stand for N and K of the tensor -> M. A number alone is M as well."""
FEWEST_TOKENS = 3
"""Least number of token counts that make a curve from decode to prefill."""
LAYER_NAMES = ("query, key, value", "attention output", "gate, up", "down")
"""Of the pairs in ``LAYERS``."""
NO_RECORDING = (
    "The link names a recording that is not open here: open its file again. Recorded times are shown"
)
_PARSED = Memo[OpenedRecording](64 << 20)
"""Opened recordings by name and content: those who open the same file share it."""
LONGEST_FILE, NAMED = 60, 6
"""Characters of a file's name that are said; products that are named where there may be more."""
ACCEPTED = (
    "Accepted is a JSON file of matrix products: what explorer bench gemm --record-to FILE writes, or the "
    "JSON of Speed's downloads"
)


@dataclass(frozen=True)
class Place:
    """What is shown: of the machine ``name`` the times at ``at``, the nearest to the shape ``asked`` for;
    None where nothing is. ``machine`` has all recordings of the machine, ``recording`` the one with that
    shape; ``sides``: N and K of the tensor, None where it cannot be read."""

    name: str
    machine: Sequence[Timings]
    recording: Timings
    asked: Shape
    at: Shape | None
    sides: tuple[int, int] | None

    @property
    def timings(self) -> list[GemmTiming]:
        """Times of all kernels at the shape."""
        return at_shape(self.recording.rows, self.at) if self.at else []

    @property
    def on_cpu(self) -> bool:
        """True for times of a CPU; of this machine without times where it has no GPU."""
        if not self.recording:
            return self.name == LIVE and gpu_device() is None
        return any(timing.on_cpu for timing in self.recording.rows)

    @property
    def text(self) -> str:
        """The shape that is shown, as text."""
        return text_of(self.at or self.asked)

    @property
    def title(self) -> str:
        """Machine and shape."""
        return f"{self.recording.machine.chip or 'this machine'} at {self.text}"

    def marked(self, query: Query) -> dict[str, str]:
        """Products that take the weights of A or of B -> "A" or "B"; A where both are stored alike."""
        schemes = schemes_of(query)
        return {name: side for side in reversed(schemes) for name in products_for(schemes[side], self.on_cpu)}

    def curve(self) -> tuple[Timings, list[GemmTiming]]:
        """Times from decode to prefill at N and K of the shape asked for, or at the nearest that were timed
        for several numbers of tokens, with their recording."""
        _, n, k = self.asked
        found: list[tuple[float, int, Timings, list[GemmTiming]]] = []
        for recording in self.machine:
            for sides in {timing.shape[1:] for timing in recording.rows}:
                rows = [timing for timing in recording.rows if timing.shape[1:] == sides]
                tokens = len({row.shape[0] for row in rows})
                away = abs(math.log(sides[0] / n)) + abs(math.log(sides[1] / k))
                if tokens >= FEWEST_TOKENS and (self.name != LIVE or away == 0):
                    found.append((away, -tokens, recording, rows))
        best = min(found, key=lambda one: one[:2], default=(0.0, 0, self.recording, []))
        return best[2], best[3]


def place_of(query: Query, name: str = "") -> Place:
    """What an address shows: the machine ``name``, or the one that it names, and the shape."""
    asked, sides = shape_of(query)
    offered = machines()
    name = name or query.get("machine") or NEAREST
    if name == LIVE:
        own = visit().gemm_timings or Recording(Machine(), ())
        timed = any(timing.shape == asked for timing in own.rows)
        return Place(name, [own], own, asked, asked if timed else None, sides)
    if name in (LATER_NAME, LAYERS_NAME):  # in links of earlier versions, beside what the machine has now
        part = gemms_by_machine().get(name)
        name = next((key for key, group in offered.items() if key != NEAREST and part in group), NEAREST)
    if name.startswith(OPENED) and name not in offered:
        query.problems["machine"], name = NO_RECORDING, NEAREST
    elif name not in offered:
        query.wrong("machine", ", ".join(offered))
        name = NEAREST
    machine = offered[name]
    shapes = {timing.shape: one for one in reversed(machine) for timing in one.rows}
    at = nearest(shapes, asked)
    return Place(name, machine, shapes[at] if at else Recording(Machine(), ()), asked, at, sides)


def machines() -> dict[str, list[Timings]]:
    """Recordings by the names of machines, the newest of a machine first: those that ship, and those that the
    visitor opened."""
    every = {RECORDED: recorded_gemms(), **gemms_by_machine()}
    names: dict[str, str] = {}
    grouped: dict[str, list[Timings]] = {}
    for name in sorted(every, key=lambda name: name in (LATER_NAME, LAYERS_NAME)):
        if every[name]:
            grouped.setdefault(names.setdefault(every[name].machine.chip, name), []).append(every[name])
    for group in grouped.values():
        group.sort(key=lambda one: one.machine.date, reverse=True)
    gpus = [one for group in grouped.values() for one in group if one.machine.gpu]
    mine = {one.name: [one.recording] for one in visit().opened_recordings}
    return {NEAREST: gpus, **grouped, **mine, LIVE: []}


def machine_labels() -> dict[str, str]:
    """Labels of the machines by their names, for a picker."""
    said = {NEAREST: "the recorded GPU with the nearest shape", LIVE: "measured here"}
    for name, recordings in machines().items():
        if name not in said:
            machine = recordings[0].machine
            mine = name.startswith(OPENED)
            label = words.plain(f"{machine.chip} {machine.date if mine else ''}", LONGEST_FILE).strip()
            said[name] = f"{'opened' if mine else 'recorded'}: {label}"
    return said


def schemes_of(query: Query) -> dict[str, Scheme]:
    """A and, where there is one, B."""
    return {side: recipe.scheme for side, recipe in zip("AB", query.record.recipes, strict=False)}


def shape_of(query: Query) -> tuple[Shape, tuple[int, int] | None]:
    """The shape that an address asks for, one token of the tensor where it names none, and the tensor's N and
    K."""
    try:
        n, k = matrix_of(query.record).values.shape
        sides = (int(n), int(k))
    except (ValueError, OSError):  # the Tensor place says why
        sides = None
    text = query.get("shape", "").strip()
    tokens = OF_LAYER.get(text) or (int(text) if re.fullmatch(r"[1-9]\d{0,8}", text) else None)
    if tokens is None:
        try:
            return shape_in(text), sides
        except ValueError as error:
            query.wrong("shape", str(error))
            tokens = 1
    return ((tokens, *sides) if sides else DECODE), sides


def shape_in(text: str) -> Shape:
    """(64, 8192, 8192) of "64x8192x8192", "64×8192×8192" or "64 * 8192 * 8192"; ``ValueError`` for others."""
    parts = [part.strip() for part in re.split("[x×*]", text.lower())]
    numbers = tuple(int(part) for part in parts if re.fullmatch(r"[1-9]\d{0,8}", part))
    if len(parts) != 3 or len(numbers) != 3:
        raise ValueError("M, N and K as in 64x8192x8192, or a number of tokens")
    return numbers[0], numbers[1], numbers[2]


def text_of(shape: Sequence[int]) -> str:
    """(64, 8192, 8192) as "64×8192×8192"."""
    return "×".join(map(str, shape))


def shape_groups(place: Place, query: Query) -> list[tuple[str, Mapping[str, str]]]:
    """Groups of the picker of shapes: titles, and labels by the texts of an address."""
    groups: list[tuple[str, Mapping[str, str]]] = []
    if place.sides:
        n, k = map(words.count, place.sides)
        groups.append((f"this tensor, {n} × {k}", {"": "1 token", "64": "64 tokens", "4096": "4,096 tokens"}))
    rows = [timing for one in place.machine for timing in one.rows]
    groups.append(
        ("timed on this machine", {text_of(s).replace("×", "x"): _named(s) for s in shapes_of(rows)})
    )
    text = query.get("shape", "")
    if all(text not in labels for _, labels in groups):
        groups.insert(0, ("asked for", {text: _named(place.asked)}))
    return groups


def shapes_of(timings: Iterable[GemmTiming]) -> list[Shape]:
    """The shapes of timings, the most telling first."""
    shapes = list(dict.fromkeys(timing.shape for timing in timings))
    telling = (SQUARE, DECODE, LARGE, DECODE_ON_CPU, PREFILL_ON_CPU)
    return [*(shape for shape in telling if shape in shapes), *(s for s in shapes if s not in telling)]


def _named(shape: Shape) -> str:
    """A shape as text, with the layers of models that have its N and K."""
    owners = [
        f"{model} {layer}"
        for model, blocks in LAYERS.items()
        for layer, sides in zip(LAYER_NAMES, blocks, strict=True)
        if sides == shape[1:]
    ]
    return f"{text_of(shape)} · {'; '.join(owners)}" if owners else text_of(shape)


def open_recording(query: Query, what: Mapping[str, Any]) -> dict[str, str]:
    """Open a visitor's recording as one more machine, and show it; ``FileRefusedError`` says what is wrong
    with the file and what is accepted."""
    found = _read(uploads.of_visitor(str(what.get("path", ""))))
    mine, most = visit(), limits.current().recordings
    if all(one.name != found.name for one in mine.opened_recordings):
        if len(mine.opened_recordings) >= most:
            raise FileRefusedError(
                f"{words.plain(found.file, LONGEST_FILE)} was not opened: {most} recordings are open, as "
                "many as may be. Remove one first"
            )
        mine.opened_recordings = (*mine.opened_recordings, found)
    here = shapes_of(found.recording.rows)
    asked, _ = shape_of(query)
    return {"machine": found.name, "shape": query.get("shape", "") if asked in here else _text(here[0])}


def remove_recording(query: Query, what: Mapping[str, Any]) -> dict[str, str]:
    """Close the recording that is shown; the recorded machines are shown again."""
    mine = visit()
    mine.opened_recordings = tuple(one for one in mine.opened_recordings if one.name != query.get("machine"))
    return {"machine": ""}


def _text(shape: Shape) -> str:
    return text_of(shape).replace("×", "x")


def _read(path: Path) -> OpenedRecording:
    """The recording in a file, with the names of products that today's tables have. Products of a newer or
    older version, of which nothing is known here, are left out, and said to be."""
    file, most = words.plain(path.name, LONGEST_FILE), limits.current().recording_bytes
    if (size := path.stat().st_size) > most:
        raise FileRefusedError(
            f"{file} was not opened: it has {words.bytes_(size)}; a recording may have {words.bytes_(most)} "
            "here"
        )
    data = path.read_bytes()
    return _PARSED.get((path.name, hashlib.sha256(data).digest()), lambda: _parsed(path.name, file, data))


def _parsed(name: str, file: str, data: bytes) -> OpenedRecording:
    """The recording in the bytes of the file ``name``, called ``file`` in words."""
    try:
        found = gemms_of_text(data)
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
    left_out = f"Not shown, because this version has no such {what}: {listed}." if unknown else ""
    text = json.dumps(recording_json(own.machine, own.rows), sort_keys=True)
    return OpenedRecording(OPENED + hashlib.sha256(text.encode()).hexdigest()[:10], name, own, left_out)


def _with_plain_texts(row: GemmTiming) -> GemmTiming:
    """``row`` with texts in which a figure reads no markup, and with the label that its product has here."""
    texts = ("gemm", "label", "variant", "file", "baseline", "baseline_note")
    plain: dict[str, Any] = {name: words.plain(getattr(row, name)).replace("<", "‹") for name in texts}
    known = product_of(row.gemm, row.on_cpu)
    return replace(row, **plain | ({"label": known.label} if known else {}))
