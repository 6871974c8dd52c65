"""Small files of many parts: work that can be stopped between them, and grows as they do.

If these fail, one visitor's file of a few megabytes holds a core long after the page's time limit. What is
counted is checkpoints and operations, never time.
"""

from __future__ import annotations

import dataclasses
import io
import json
import struct
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, NoReturn

import numpy as np
import pytest
import torch
from PIL import Image
from pydantic import ValidationError
from torch import Tensor

from app.sections.speed_machines import shape_in
from explorer import SourceError, open_source
from explorer.progress import StoppedError, stoppable
from explorer.recordings.files import RecordingError
from explorer.recordings.gemm import gemms_of_text
from explorer.sources.base import TensorInfo
from explorer.sources.coded import CodedSource
from explorer.sources.safetensors_header import parse_json
from explorer.sources.source_limits import HOSTED
from explorer.survey.budget import budget_of
from explorer.survey.recipe import KEY, ModelRecipe
from explorer.survey.rows import Head, checked
from explorer.survey.times import seconds_of
from explorer.words import byte_size
from tests.fuzz.bounds import fault
from tests.sources.hostile import array_header, chunk, entry, npy, png, safetensors, scans, zipped

LIMITS = dataclasses.replace(HOSTED, folders=True)
EMPTY = chunk(b"prVt", b"")


def plain_jpeg() -> bytes:
    out = io.BytesIO()
    Image.new("L", (8, 8)).save(out, "JPEG")
    return out.getvalue()


def markers(count: int) -> bytes:
    """A picture with ``count`` comments before it."""
    return b"\xff\xd8" + b"\xff\xfe\0\2" * count + plain_jpeg()[2:]


def layers_of_gptq(count: int) -> dict[str, object]:
    """A header of ``count`` layers, with their bytes in order."""
    parts = {"qweight": ("I32", (1, 8), 32), "scales": ("F16", (1, 8), 16), "qzeros": ("I32", (1, 1), 4)}
    found, at = dict[str, object](), 0
    for layer in range(count):
        for end, (dtype, shape, size) in parts.items():
            found[f"l{layer}.{end}"] = entry(list(shape), at, at + size, dtype)
            at += size
    return found


MANY: dict[str, tuple[Callable[[], bytes], int]] = {
    "scans.jpg": (lambda: scans(64, 64, 90), 90),
    "markers.jpg": (lambda: markers(3000), 3000),
    "chunks.png": (lambda: png(1, 1, bytes(2), more=EMPTY * 3000), 3000),
    "members.npz": (lambda: zipped({f"{i}.npy": npy(array_header((1,)), bytes(4)) for i in range(500)}), 500),
    "gptq.safetensors": (lambda: safetensors(layers_of_gptq(300), bytes(52 * 300)), 900),
    "lines.csv": (lambda: b"\n" * 200_000 + b"1\n", 40),
    "long-lines.csv": (lambda: (b"1," * 9999 + b"1\n") * 1000, 150),
    "longest-lines.csv": (lambda: (b"1," * 999_999 + b"1\n") * 2, 60),
}
"""Name -> the file's bytes, and the number of checkpoints that opening it passes at least."""


@pytest.mark.parametrize("name", MANY)
def test_opening_a_file_of_many_parts_can_be_stopped_between_them(name: str, tmp_path: Path) -> None:
    """At the last of these checkpoints too, with no other error in its place."""
    path, (make, least), passed = tmp_path / name, MANY[name], list[None]()
    path.write_bytes(make())

    def count() -> None:
        passed.append(None)
        if len(passed) == least:
            raise StoppedError("stopped")

    with stoppable(count), pytest.raises(StoppedError, match="stopped"):
        open_source(str(path), limits=LIMITS)


REFUSED: dict[str, tuple[Callable[[], bytes], str]] = {
    "scans.jpg": (lambda: scans(64, 64, 101), "more than 100 scans"),
    "markers.jpg": (lambda: markers(200_001), "more than 200,000 parts"),
    "chunks.png": (lambda: png(1, 1, bytes(2), more=EMPTY * 200_001), "more than 200,000 parts"),
    "axes.npy": (lambda: npy(array_header((1,) * 100), bytes(4)), "more than 64 axes"),
    "header.npy": (lambda: npy(array_header((4,)) + " " * 3000, bytes(16)), "a header of 3,0"),
    "columns.csv": (lambda: b"1," * (2 << 20) + b"1\n", "a line of more than"),
    "state.safetensors": (
        lambda: safetensors({
            "l.weight": entry([8, 1], 0, 8, "U8"), "l.weight.absmax": entry([1], 8, 12),
            "l.weight.quant_map": entry([16], 12, 76),
            "l.weight.quant_state.bitsandbytes__nf4": entry([70_000], 76, 70_076, "U8"),
        }, bytes(70_076)),
        "has 70,000 bytes; accepted",
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", REFUSED)
def test_more_parts_than_such_a_file_has_are_refused(name: str, tmp_path: Path) -> None:
    path, (make, words) = tmp_path / name, REFUSED[name]
    path.write_bytes(make())
    with pytest.raises(SourceError, match=words):
        source = open_source(str(path), limits=LIMITS)
        source.matrix(source.infos[0].name)


HALF = "1," * 99_999
TABLES: dict[str, tuple[str, tuple[int, int] | str]] = {
    "short lines": ("1\n" * 300_000, (300_000, 1)),
    "one line": (HALF + "1", (1, 100_000)),
    "headings": ("name," * 99_999 + "name\n" + HALF + "1\n", (1, 100_000)),
    "comments": ("#" + HALF + "\n" + HALF + "1#" + HALF + "\n" + HALF + "1\n", (2, 100_000)),
    "a long cell": (HALF + "0" * 300_000 + "1\n", "a cell is blank or has more than 100,000 characters"),
    "a word": (HALF + "1\n" + HALF + "pear\n", "row 2 of numbers, column 100000 has 'pear'"),
    "no end": (HALF + "1\n" + HALF + "\n", "row 2 of numbers, column 100000 has ''"),
    "a gap": (HALF + "1\n" + HALF[2:] + " " * 300_000 + ",1\n", "row 2 of numbers, column 99999 has ''"),
    "short": (HALF + "1\n1,1\n", "row 2 of numbers has 2 cells, row 1 has 100000"),
}
"""Name -> a table of ones, and its shape, or why it is refused."""


@pytest.mark.parametrize("name", TABLES)
def test_a_call_of_the_parser_takes_little_text(name: str, tmp_path: Path) -> None:
    """It holds Python's lock to its end: a line of 4 MB keeps all other threads for a tenth of a second."""
    text, found = TABLES[name]
    (path := tmp_path / "x.csv").write_text(text)
    parse, sizes = np.loadtxt, list[int]()

    def parsed(lines: list[str], *args: Any, **more: Any) -> Any:
        sizes.append(sum(map(len, lines)))
        return parse(lines, *args, **more)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("explorer.sources.csv_file.np.loadtxt", parsed)
        if isinstance(found, str):
            with pytest.raises(SourceError, match=found):
                open_source(str(path), limits=LIMITS)
        else:
            x = open_source(str(path), limits=LIMITS).read()
            assert tuple(x.shape) == found and bool((x == 1).all())
    assert sizes and max(sizes) <= 1 << 17


def test_an_orientation_among_long_values_is_found(tmp_path: Path) -> None:
    """Only the entry of the orientation is read, of a directory of thousands that are as long as it all."""
    path, entries = tmp_path / "x.jpg", 4000
    fields = [struct.pack(">HHII", 0x9000 + i, 1, 60_000, 8) for i in range(entries)]
    fields.insert(7, struct.pack(">HHIHH", 0x0112, 3, 1, 6, 0))
    exif = b"Exif\0\0MM\0*\0\0\0\x08" + struct.pack(">H", len(fields)) + b"".join(fields) + bytes(12_000)
    out = io.BytesIO()
    Image.new("L", (16, 8)).save(out, "JPEG")
    path.write_bytes(b"\xff\xd8\xff\xe1" + struct.pack(">H", len(exif) + 2) + exif + out.getvalue()[2:])
    read = list[int]()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("PIL.TiffImagePlugin.ImageFileDirectory_v2.load", lambda *_: read.append(1))
        assert open_source(str(path)).infos[0].shape == (16, 8)
    assert not read


class InMind(CodedSource):
    """Tensors of a header without a file."""

    def __init__(self, header: dict[str, object]) -> None:
        self.origin = "x"
        listed = json.loads(json.dumps(header)).items()
        self.stored = tuple(TensorInfo(n, tuple(e["shape"]), e["dtype"]) for n, e in listed)

    def read_stored(self, info: TensorInfo, rows: int | None, progress: object) -> Tensor:
        return torch.zeros(info.shape)


class Listed(tuple[TensorInfo, ...]):
    """Entries that count how often they are gone through."""

    times = 0

    def __iter__(self) -> Iterator[TensorInfo]:
        Listed.times += 1
        return super().__iter__()


def test_tensors_are_found_by_name_without_going_through_all_for_each() -> None:
    source, Listed.times = InMind(layers_of_gptq(20)), 0
    source.infos = Listed(source.stored)
    assert [source.info(info.name) for info in source.stored] == list(source.stored)
    assert Listed.times <= 2


class Seen(dict[str, TensorInfo]):
    """Tensors by name, which cannot be gone through."""

    def gone_through(self) -> NoReturn:
        raise AssertionError("gone through all names")

    keys = values = items = __iter__ = gone_through  # type: ignore[assignment]


def test_the_names_of_a_file_are_not_gone_through_for_each_layer() -> None:
    """Twice the layers would take four times the work."""
    source = InMind(layers_of_gptq(2))
    weight = source._weight(source.stored[0], Seen({info.name: info for info in source.stored}), {}, {})
    assert weight is not None and weight.info.name == "l0.weight" and not weight.problem


def test_a_name_of_many_words_stands_for_few_layers() -> None:
    """Each beginning of a scale's name may be the layer's; a name of a thousand characters has hundreds."""
    names = [f"{i}" + "_a" * 490 + "_scale" for i in range(20)]
    layers = {name: entry([1], 0, 1, "I8") for name in ("w", "0_a", "0" + "_a" * 480, *names[1:])}
    source = InMind(layers | {"w_scale": entry([1], 0, 4), names[0]: entry([1], 0, 4)})
    with pytest.MonkeyPatch.context() as patch:
        found = list[str]()
        patch.setattr("explorer.sources.coded._unknown", lambda info, scales, _: found.extend(scales))
        source.find_codes()
    assert set(found) == {"w", "0" + "_a" * 480}, "those that are layers; 2 GB were kept of 15 MB of names"


def test_one_object_of_a_header_has_few_entries() -> None:
    """Python parses it in one go, in which nobody is answered: a million take half a second."""
    flat = [json.dumps(dict.fromkeys(map(str, range(n)), "")).encode() for n in (100_000, 110_000)]
    assert len(parse_json(flat[0], "x", "list of files", HOSTED)) == HOSTED.tensors == 100_000
    with pytest.raises(SourceError, match="more parts"):
        parse_json(flat[1], "x", "list of files", HOSTED)


def test_axes_are_counted_before_they_are_multiplied(tmp_path: Path) -> None:
    """By the answer of the process that reads a pickle: a product of n long numbers takes n² steps."""
    path, claim = tmp_path / "x.pt", {"name": "w", "dtype": "float32", "start": 0, "stop": 4}
    path.write_bytes(bytes(4))
    with pytest.MonkeyPatch.context() as patch:
        answer = [{**claim, "shape": [1 << 62] * 200_000, "stride": [0] * 200_000}]
        patch.setattr("explorer.sources.torch_file._answer_of_reader", lambda *_: answer)
        assert fault(lambda: open_source(str(path)), (SourceError,)) is None


def test_of_many_defects_of_a_file_one_is_described() -> None:
    """Each takes a kilobyte: of a recording of 2 MB, all of them are gigabytes."""
    with pytest.raises(RecordingError, match=r"rows\.0") as refusal:
        gemms_of_text(b'{"machine":{},"rows":[' + b"0," * 5000 + b"0]}")
    assert isinstance(cause := refusal.value.__cause__, ValidationError) and cause.error_count() < 5
    with pytest.raises(ValueError, match="more than 100,000 parts"):
        ModelRecipe.from_json(f'{{"{KEY}":1,"schemes":[{"0," * 100_000}0]}}')
    with pytest.raises(ValueError, match=r"the head is wrong in 99,\d+ places"):
        checked(Head, {"schemes": [0] * 99_000}, "the head")


@pytest.mark.parametrize("read", [byte_size, lambda text: budget_of(text, None), seconds_of, shape_in])
def test_blanks_in_a_text_are_passed_once(read: Callable[[str], object]) -> None:
    """Two repeats that both match blanks go through n of them n times."""
    assert fault(lambda: read("1" + " " * 200_000 + "1x"), (ValueError,)) is None
