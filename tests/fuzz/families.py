"""What is fuzzed: for each family, how a random case is made, and which errors are the project's own."""

from __future__ import annotations

import csv
import io
import json
import random
import tempfile
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from unittest.mock import patch

import gradio as gr
import numpy as np
import torch
from huggingface_hub import constants
from safetensors.torch import save

from app.serving.values import DEFECT
from explorer import FORMATS, SCHEMES, Scheme, SourceError, open_source
from explorer.formats.code import code_facts, flip_bit, parse_code
from explorer.methods.recipe import Recipe
from explorer.sources.models import HubModel, LocalModel, layers, open_model
from explorer.sources.source_limits import HOSTED, SUFFIXES
from explorer.survey import ModelRecipe, frontier, load_survey, recipe_of
from explorer.survey.rows import MOST_BYTES, SURVEYS
from tests.app import asked
from tests.fuzz import connections, routes
from tests.fuzz.mutate import NUMBERS, ODDITIES, mutated, odd, words
from tests.sources import lying_hub
from tests.sources.hostile import (
    array_header,
    framed,
    gguf,
    items,
    listed,
    npy,
    pair,
    saved,
    text,
    torch_zip,
    whole_gguf,
    zipped,
)

Case = Callable[[], object]
LIMITS = replace(
    HOSTED, suffixes=SUFFIXES, tensors=20_000, pickle_seconds=1, request_seconds=0.5, visit_seconds=1
)
"""Those of a page, except that .pt files are taken and the Hub has less time."""
ELEMENTS = 1 << 20


@dataclass(frozen=True)
class Family:
    """``make`` turns a generator into a case to run; errors other than ``own`` are failures."""

    make: Callable[[random.Random], Case]
    own: tuple[type[BaseException], ...]
    share: float


@cache
def _folder() -> Path:
    return Path(tempfile.mkdtemp(prefix="fuzz-"))


def _file(suffix: str, data: bytes) -> Case:
    def run() -> None:
        path = _folder() / f"x{suffix}"
        path.write_bytes(data)
        source = open_source(str(path), limits=replace(LIMITS, folders=True))
        for info in layers(source)[:3]:
            source.matrix(info.name, max_elements=ELEMENTS)

    return run


VALUES = torch.arange(48, dtype=torch.float32).reshape(6, 8)
HEADER = {
    "__metadata__": {"format": "pt"},
    "w": {"dtype": "F32", "shape": [2, 4], "data_offsets": [0, 32]},
    "b": {"dtype": "BF16", "shape": [4], "data_offsets": [32, 40]},
    "q": {"dtype": "F4", "shape": [2, 8], "data_offsets": [40, 48]},
}


@cache
def _good(suffix: str) -> tuple[bytes, ...]:
    """Files as programs write them."""
    tensors = {"w": VALUES, "n.b": VALUES[0].to(torch.bfloat16), "i": VALUES.to(torch.int8)}
    array = VALUES.numpy()
    if suffix == ".safetensors":
        return save(tensors), save({"flags": VALUES > 3, "f8": VALUES.to(torch.float8_e4m3fn)})
    if suffix == ".npy":
        return tuple(
            _npy_of(a) for a in (array, np.asfortranarray(array), array > 3, array.astype(">f8"), array[0])
        )
    if suffix == ".npz":
        out, packed = io.BytesIO(), io.BytesIO()
        np.savez(out, a=array, b=array.T)
        np.savez_compressed(packed, a=array, b=np.asfortranarray(array))
        return out.getvalue(), packed.getvalue()
    if suffix == ".gguf":
        return whole_gguf(), _gguf_of_types()
    if suffix == ".csv":
        return b"a,b,c\n1,2,3\n4,5,6\n", b"1;2\n3;4\n", b"\xef\xbb\xbf1\t2\n-3e5\tnan\n"
    nested = {
        "m": {"w": VALUES, "l": [VALUES.T, VALUES[1:]]},
        "step": 3,
        "p": torch.nn.Parameter(VALUES.clone()),
    }
    bytes_too = {"b": b"abc", "f8": VALUES.to(torch.float8_e5m2)}
    return saved(nested), saved(nested, legacy=True), saved(VALUES.to(torch.uint16)), saved(bytes_too)


def _npy_of(array: np.ndarray) -> bytes:
    out = io.BytesIO()
    np.save(out, array)
    return out.getvalue()


def _gguf_of_types() -> bytes:
    """A tensor in one block of each type, as many bytes apart as the largest takes."""
    from gguf import GGML_QUANT_SIZES

    tensors = [
        listed(kind.name.encode(), [block, 2], int(kind), 1024 * i)
        for i, (kind, (block, _)) in enumerate(GGML_QUANT_SIZES.items())
    ]
    return gguf((), tensors, random.Random(0).randbytes(1024 * len(tensors)))


def _mutated_file(rng: random.Random) -> Case:
    suffix = rng.choice((".safetensors", ".npy", ".npz", ".csv", ".gguf"))
    return _file(suffix, mutated(rng, rng.choice(_good(suffix))))


def _mutated_pickle(rng: random.Random) -> Case:
    if rng.random() < 0.3:
        return _file(".pt", torch_zip(_opcodes(rng)))
    return _file(".pt", mutated(rng, rng.choice(_good(".pt"))))


OPCODES = (
    b"]", b"}", b")", b"(", b"N", b"K\x05", b"X\x01\x00\x00\x00a", b"q\x00", b"h\x00", b"a", b"s", b"e", b"u",
    b"t", b"\x85", b"\x86", b"R", b"b", b"Q", b"2", b"0", b"1", b"\x8a\x04\xff\xff\xff\x7f",
    b"J\xff\xff\xff\x7f",
    b"ccollections\nOrderedDict\n", b"ctorch._utils\n_rebuild_tensor_v2\n", b"ctorch\nFloatStorage\n",
    b"cbuiltins\nbytearray\n", b"cos\nsystem\n", b"\x8e" + b"\xff" * 8, b"\x94", b"\x93", b"\x81",
)  # fmt: skip
"""Instructions of a pickle, most of them with a sensible argument."""


def _opcodes(rng: random.Random) -> bytes:
    return b"\x80\x04" + b"".join(rng.choices(OPCODES, k=rng.randint(1, 40))) + b"."


def _generated_header(rng: random.Random) -> Case:
    kind = rng.randrange(5)
    if kind == 4:
        return _file(".gguf", _odd_gguf(rng))
    if kind == 0:
        text = json.dumps(odd(rng, HEADER)).encode()
        return _file(".safetensors", framed(text, bytes(rng.choice((0, 16, 48, 4096)))))
    shape = rng.choice(((6, 8), 5, None, (rng.choice(ODDITIES), 2), tuple(rng.choices(ODDITIES[-21:], k=3))))
    dtype = rng.choice(("<f4", "<f2", "|b1", ">i8", "|O", "<U3", "V8", rng.choice(ODDITIES)))
    text = array_header(shape, dtype, rng.random() < 0.5)
    data = npy(text.encode("latin1", "replace").decode("latin1"), bytes(192), rng.choice((1, 2, 3)))
    if kind == 1:
        return _file(".npy", data)
    if kind == 2:
        return _file(".npz", zipped({"a.npy": data, "b.npy": _good(".npy")[0]}, rng.choice((0, 8))))
    out = io.StringIO()
    csv.writer(out).writerows([rng.choices(ODDITIES, k=rng.randint(0, 4)) for _ in range(rng.randint(0, 5))])
    return _file(".csv", out.getvalue().encode("utf-8", "replace"))


def _odd_gguf(rng: random.Random) -> bytes:
    """A GGUF file of which every count, length, type and offset may be any number."""

    def number(usual: int, bits: int = 64) -> int:
        return usual if rng.random() < 0.9 else int(rng.choice(NUMBERS)) & (2**bits - 1)

    def value(depth: int = 0) -> tuple[int, bytes]:
        kind = number(rng.choice((0, 4, 6, 7, 8, 9, 10)), 32)
        if kind == 8:
            raw = rng.randbytes(rng.randrange(9))
            return kind, text(raw, length=number(len(raw)))
        if kind != 9 or depth > 9:
            return kind, rng.randbytes(rng.choice((1, 4, 8)))
        inside, raw = value(depth + 1)
        return kind, items(inside, number(1), raw)

    keys = (b"general.alignment", b"x", b"\xff", b"", b"a\nb")
    pairs = [pair(rng.choice(keys), *value()) for _ in range(rng.randrange(4))]
    tensors = [
        listed(
            rng.choice((b"w", b"v%d" % i, b"\x1b[2J", b"\xff")),
            [number(32) for _ in range(rng.randint(0, 4))],
            number(rng.choice((0, 1, 2, 8, 12, 30)), 32),
            number(4096 * i),
        )
        for i in range(rng.randrange(4))
    ]
    counts = number(len(tensors)), number(len(pairs))
    return gguf(pairs, tensors, bytes(rng.choice((0, 64, 65536))), version=number(3, 32), counts=counts)


def _index(rng: random.Random) -> Case:
    good = {"metadata": {}, "weight_map": {"w": "a.safetensors", "v": "b.safetensors"}}
    text = json.dumps(odd(rng, good)).encode()

    def run() -> None:
        folder = _folder() / "model"
        folder.mkdir(exist_ok=True)
        (folder / "a.safetensors").write_bytes(_good(".safetensors")[0])
        (folder / "b.safetensors").write_bytes(mutated(rng, _good(".safetensors")[1]))
        (folder / "model.safetensors.index.json").write_bytes(text)
        source = LocalModel(folder, limits=LIMITS)
        source.matrix(layers(source)[0].name, max_elements=ELEMENTS)

    return run


def _place(rng: random.Random) -> Case:
    known = ("owner", "owner/name", "main", "refs/pr/1", "~", "~root", "/etc/passwd", "..", "app", "0" * 40)
    where, revision = words(rng, known), rng.choice((None, words(rng, known)))
    bounds = replace(LIMITS, folders=rng.random() < 0.5)

    def run() -> None:
        with patch.object(constants, "HF_HUB_OFFLINE", True):
            open_model(where, revision, bounds)

    return run


def _scheme(rng: random.Random) -> Case:
    more = ("asym", "sym", "group", "block", "row", "tensor", "flat64", "minmax", "mse", "~sr", "seed")
    known = (*SCHEMES, *FORMATS, *more)
    text = words(rng, known)
    if rng.random() < 0.5:
        text = mutated(rng, rng.choice(list(SCHEMES)).encode()).decode("utf-8", "replace")

    def run() -> None:
        scheme = Scheme.parse(text)
        assert Scheme.parse(str(scheme)) == scheme, f"{text!r} is not what it is written as"
        scheme.describe()

    return run


def _entry(rng: random.Random) -> Case:
    fmt = rng.choice(list(FORMATS.values()))
    text = words(rng, ("0b", "0x", "1.5", "nan", "-inf", "1e40", "0b0101", "0x5A", "_", "−"))
    bit, code = rng.choice((*ODDITIES, 3, 31)), rng.choice((*ODDITIES, 1, 200))

    def run() -> None:
        for attempt in (
            lambda: code_facts(fmt, parse_code(text, fmt)),
            lambda: flip_bit(fmt, 0, bit),
            lambda: code_facts(fmt, code),
        ):
            try:
                attempt()
            except ValueError:
                continue

    return run


def _link(rng: random.Random) -> Case:
    names = ("source", "sample", "tab", "scheme", "second", "model", "revision", "layer", "row", "column")
    known = (*list(SCHEMES)[:8], "builtin", "file", "model", "mlp_up", "tensor", "learn", "nvfp4~mse")
    query = {name: words(rng, known) for name in rng.sample(names, rng.randint(1, len(names)))}
    functions = (one for part in asked.page().blocks.values() for one in getattr(part, "server_fns", ()))
    view = rng.choice([one for one in functions if one.__name__ == "view"])

    def run() -> None:
        with asked.quick():
            assert view(query).get("refused") != DEFECT, query

    return run


def _request(rng: random.Random) -> Case:
    function = rng.choice(asked.functions())
    values = asked.hostile_values(rng, function)
    event = asked.hostile_event(rng) if rng.random() < 0.3 else None

    def run() -> None:
        with asked.quick():
            asked.ask(function, values, event)

    return run


def _hub(rng: random.Random) -> Case:
    good = {"id": "a/b", "sha": lying_hub.COMMIT, "siblings": lying_hub.named("model.safetensors", "x.json")}
    weights = lying_hub.WEIGHTS
    answers = dict(lying_hub.repository())
    kind = rng.randrange(4)
    if kind == 0:
        answers["api/models/a/b"] = lying_hub.as_json(odd(rng, good))
    elif kind == 1:
        answers["api/models/a/b"] = lying_hub.body(mutated(rng, json.dumps(good).encode()))
    elif kind == 2:
        answers["model.safetensors"] = lying_hub.ranged(mutated(rng, weights))
    else:
        whole = lying_hub.head(rng.choice((200, 206)), Content_Length=8) + weights[:8]
        reply = mutated(rng, whole)
        answers[rng.choice(("api/models/a/b", "model.safetensors"))] = lambda asked: iter([reply])

    def run() -> None:
        with patch.object(constants, "HF_HUB_OFFLINE", False), lying_hub.serve(answers) as hub:
            model = HubModel("a/b", endpoint=hub.url, limits=LIMITS)
            model.matrix(layers(model)[0].name, max_elements=ELEMENTS)

    return run


@cache
def _survey_lines() -> tuple[str, ...]:
    """The first lines of a recorded survey, as one of so few layers."""
    path = next(SURVEYS.glob("*.jsonl"))
    head, *layers_ = path.read_text(encoding="utf-8").splitlines()[:5]
    return json.dumps({**json.loads(head), "layers": len(layers_)}), *layers_


def _survey(rng: random.Random) -> Case:
    lines = list(_survey_lines())
    at = rng.randrange(len(lines))
    if rng.random() < 0.5:
        lines[at] = json.dumps(odd(rng, json.loads(lines[at])))
    data = "\n".join((*lines, "")).encode("utf-8", "replace")
    data = mutated(rng, data) if rng.random() < 0.5 else data
    if rng.random() < 0.1:
        data = _flooded(rng, data)

    def run() -> None:
        path = _folder() / "survey.jsonl"
        path.write_bytes(data)
        with one_line():
            found = load_survey(path)
        for signal in found.head.signals:
            recipe_of(found, frontier(found, signal).at(4.5))

    return run


def _flooded(rng: random.Random, data: bytes) -> bytes:
    """A survey that grows to the largest file that is read and beyond: by lines, numbers, levels or texts."""
    head, _, rest = data.partition(b"\n")
    layer = rest.partition(b"\n")[0]
    part = rng.choice((b"{}\n", b"\n", b"0.5,", b"[", b'{"a":', b"9", b"\x1b[2J", layer + b"\n", b'"x":1,'))
    flood = part * (rng.choice((1 << 10, 1 << 20, MOST_BYTES, MOST_BYTES + 1)) // len(part))
    at = rng.choice((0, rng.randrange(len(data) + 1), len(head) + 1, len(data)))
    return data[:at] + flood + data[at:]


@contextmanager
def one_line() -> Iterator[None]:
    """Inside, a refusal is one line of bounded length that a terminal shows as it is."""
    try:
        yield
    except ValueError as error:
        assert str(error).isprintable() and len(str(error)) < 1000, f"refused by {str(error)[:100]!r}"
        raise


def _recipe(rng: random.Random) -> Case:
    chosen = {"a": Recipe.parse("nvfp4"), "b": Recipe.parse("int4_group128+gptq")}
    good = ModelRecipe("a/b", None, "0" * 64, chosen, "weight", 4.5, versions={"torch": "2"}).to_json()
    data = mutated(rng, good.encode())
    if rng.random() < 0.5:
        data = json.dumps(odd(rng, json.loads(good))).encode()
    if rng.random() < 0.1:
        data = _flooded(rng, data)

    def run() -> None:
        path = _folder() / "recipe.json"
        path.write_bytes(data)
        with one_line():
            found = ModelRecipe.load(path)
        assert ModelRecipe.from_json(found.to_json()).layers == found.layers

    return run


FAMILIES = {
    "files": Family(_mutated_file, (SourceError,), 0.29),
    "headers": Family(_generated_header, (SourceError,), 0.25),
    "pickles": Family(_mutated_pickle, (SourceError,), 0.05),
    "indexes": Family(_index, (SourceError,), 0.05),
    "places": Family(_place, (SourceError,), 0.05),
    "schemes": Family(_scheme, (ValueError,), 0.1),
    "entries": Family(_entry, (), 0.05),
    "links": Family(_link, (), 0.04),
    "requests": Family(_request, (gr.Error,), 0.04),
    "routes": Family(routes.request, (), 0.04),
    "bodies": Family(routes.bodies, (), 0.04),
    "connections": Family(connections.crowd, (), 0.01),
    "hub": Family(_hub, (SourceError,), 0.04),
    "surveys": Family(_survey, (ValueError,), 0.02),
    "recipes": Family(_recipe, (ValueError,), 0.02),
}
"""By name; ``share`` is of all cases."""
