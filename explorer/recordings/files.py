"""Recordings: measurements that ship with the explorer, each file one ``Recording`` of one type of row.

A file of ``assets/measurements`` is JSON: the machine, and rows whose keys are the fields of a timing. It is
validated when it is loaded, so that nothing behind this module handles unchecked values. A file that is
missing is an empty recording (the page then says "not recorded yet"); one that is damaged raises
``RecordingError``, which names the first place that is wrong."""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Annotated, Any, Generic, TypeVar, cast

from pydantic import FailFast, TypeAdapter, ValidationError

from explorer.paths import ASSETS, checkout
from explorer.recordings.machine import Machine, MachineLimits

FOLDER = ASSETS / "measurements"
MACHINES = "machines"
"""The folder of recordings by machine."""
NOT_RECORDED = "not recorded yet"
SIGNIFICANT_DIGITS = 6
"""Significant digits of recorded numbers: more are noise and enlarge the files."""
Row = TypeVar("Row")


class RecordingError(ValueError):
    """A recording that cannot be read, with its path and the defect."""


@dataclass(frozen=True)
class Recording(Generic[Row]):
    """Rows of one type, and the machine they were measured on; false if it has no rows."""

    machine: Machine
    rows: Annotated[tuple[Row, ...], FailFast()]

    def __bool__(self) -> bool:
        return bool(self.rows)

    @property
    def limits(self) -> MachineLimits | None:
        """Limits of the machine, if they were measured in the same run."""
        return self.machine.limits

    @property
    def source(self) -> str:
        """Origin of the rows: "recorded on NVIDIA H200, 2026-11-21, …", or "not recorded yet"."""
        return f"recorded on {self.machine.describe()}" if self else NOT_RECORDED

    @property
    def sentence(self) -> str:
        """``source`` with a capital letter: "Recorded on one NVIDIA H200, …", or "Not recorded yet"."""
        return f"Recorded on one {self.machine.describe()}" if self else NOT_RECORDED.capitalize()


def recorded(name: str, row: type[Row]) -> Recording[Row]:
    """Load ``assets/measurements/<name>.json``; a missing file is an empty recording.

    ``RecordingError`` if it is damaged. After ``leave_out_damaged`` a damaged file is an empty recording too.
    """
    path = FOLDER / f"{name}.json"
    if not path.exists():
        return Recording(Machine(), ())
    try:
        loaded: Recording[Row] = _load(path, cast(Any, row), path.stat().st_mtime_ns)
    except RecordingError as error:
        if _report is None:
            raise
        _report(str(error))
        return Recording(Machine(), ())
    return loaded


def machine_name(name: str, machine: Machine) -> str:
    """Return the name under which a machine keeps its recording ``name``: the chip, a CPU's threads, the
    recording ("machines/intel-xeon-2-threads/gemm")."""
    plain = re.sub(r"\((r|tm)\)|\b(cpu|processor)\b", " ", machine.chip.lower())
    words = re.findall(r"[a-z0-9]+", plain) or ["unnamed"]
    slug = "-".join([*words, str(machine.threads), "threads"] if machine.threads else words)
    return f"{MACHINES}/{slug}/{name}"


def recorded_by_machine(name: str, row: type[Row]) -> dict[str, Recording[Row]]:
    """Load every machine's own recording ``name``: folder of the machine -> recording."""
    folders = sorted(path.parent.name for path in (FOLDER / MACHINES).glob(f"*/{name}.json"))
    every = {folder: recorded(f"{MACHINES}/{folder}/{name}", row) for folder in folders}
    return {folder: recording for folder, recording in every.items() if recording}


_report: Callable[[str], None] | None = None


def leave_out_damaged(report: Callable[[str], None]) -> None:
    """Treat damaged recordings as empty from now on, and pass each defect to ``report``."""
    global _report
    _report = report


@cache
def _load(path: Path, row: Any, _modified: int) -> Recording[Any]:
    try:
        return cast(Recording[Any], _adapter(Recording[row]).validate_json(path.read_bytes()))
    except OSError as error:
        raise RecordingError(f"{path.name} cannot be read: {error.strerror}") from error
    except ValidationError as error:
        raise RecordingError(
            f"{path.name} is not a recording of {row.__name__}: {_first_defect(error, 'the file')}"
            f" ({error.error_count()} problems); record it again, or restore the file"
        ) from error


def _first_defect(error: ValidationError, whole: str) -> str:
    """Describe the first error: its place, what is accepted there, and the number that was found."""
    first = error.errors()[0]
    number = f", got {str(first['input'])[:30]}" if isinstance(first["input"], int | float) else ""
    return f"{'.'.join(map(str, first['loc'])) or whole}: {first['msg']}{number}"


def record(name: str, recording: Recording[Any]) -> Path:
    """Write a recording to ``assets/measurements/<name>.json``, a row a line; ``ValueError`` outside a
    checkout."""
    checkout()
    return record_to(FOLDER / f"{name}.json", recording)


def record_each(name: str, machine: Machine, rows: Iterable[Any]) -> Path:
    """Call ``record`` after each of ``rows``, so that a run that is stopped keeps what it has measured;
    ``ValueError`` without rows."""
    found = list(kept_each(rows, lambda done: record(name, Recording(machine, tuple(done)))))
    if not found:
        raise ValueError(f"nothing was measured for {name}")
    return FOLDER / f"{name}.json"


def kept_each(rows: Iterable[Row], keep: Callable[[Sequence[Row]], object]) -> Iterator[Row]:
    """Yield ``rows`` one by one; after each, call ``keep`` with all rows so far."""
    found: list[Row] = []
    for row in rows:
        found.append(row)
        keep(found)
        yield row


def record_to(path: Path, recording: Recording[Any]) -> Path:
    """Write a recording to the file ``path``, in the form of ``record``; missing folders are made."""
    path.parent.mkdir(parents=True, exist_ok=True)
    found = recording_json(recording.machine, recording.rows)
    machine = json.dumps(found["machine"], ensure_ascii=False)
    rows = ",\n".join(
        f"  {json.dumps(row, separators=(',', ':'), ensure_ascii=False)}" for row in found["rows"]
    )
    path.write_text(f'{{"machine":{machine},\n"rows":[\n{rows}\n]}}\n', encoding="utf-8")
    return path


def as_json(value: Any) -> Any:
    """Return a timing or a machine as plain JSON values with the keys of the files, without a machine's empty
    fields."""
    adapter = _adapter(cast(Any, type(value)))
    return json.loads(adapter.dump_json(value, by_alias=True, exclude_defaults=isinstance(value, Machine)))


def recording_json(machine: Machine, rows: Iterable[Any]) -> dict[str, Any]:
    """Return the JSON of ``--json`` and of the page's download, with the keys of a recorded file."""
    return {"machine": _rounded(as_json(machine)), "rows": [_rounded(as_json(row)) for row in rows]}


@cache
def _adapter(kind: Any) -> TypeAdapter[Any]:
    return TypeAdapter(kind)


def recording_of(value: Any, row: type[Row], named: str = "") -> Recording[Row]:
    """Restore a recording from the values of ``recording_json``.

    ``RecordingError`` describes the first defect; ``named`` is its word for the rows.
    """
    try:
        return cast(Recording[Row], _adapter(cast(Any, Recording)[row]).validate_python(value))
    except ValidationError as error:
        what = named or row.__name__
        raise RecordingError(
            f"this is no recording of {what}: {_first_defect(error, 'the whole')}"
        ) from error


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.{SIGNIFICANT_DIGITS}g}")
    if isinstance(value, dict):
        return {key: _rounded(item) for key, item in value.items()}
    return [_rounded(item) for item in value] if isinstance(value, list) else value
