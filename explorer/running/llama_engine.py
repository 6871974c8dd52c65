"""The engine that runs GGUF files: llama.cpp on the CPU, through the package xllamacpp."""

from __future__ import annotations

import json
import queue
import signal
import subprocess
import sys
import tempfile
import threading
import time
import weakref
from collections.abc import Generator
from contextlib import suppress
from functools import partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path
from typing import Any, Self

import torch

from explorer.checkpoints.gguf_model import open_gguf
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.target import Plan
from explorer.checkpoints.to_gguf import FILE, NAME
from explorer.checkpoints.write import checked
from explorer.methods.recipe import Recipe
from explorer.models.files import folder_of, linear_names
from explorer.models.texts import AnyTexts
from explorer.progress import Progress, checkpoint
from explorer.running import llama_process
from explorer.running.engine import (
    CANDIDATES,
    GREEDY,
    Engine,
    Sampling,
    Token,
    TokenCandidate,
    Told,
    check_room,
)
from explorer.running.subject import Subject, SubjectKind
from explorer.schemes import Scheme
from explorer.sources import open_source
from explorer.sources.base import SourceError
from explorer.survey.export import Wanted, export
from explorer.survey.recipe import ModelRecipe
from explorer.threads import usable_threads
from explorer.words import plain

PACKAGE = "xllamacpp"
_CASTS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}
"""Dtypes of safetensors files -> the schemes that keep their values exactly."""
_SETTINGS = {"n_parallel": 1, "warmup": False, "n_gpu_layers": 0, "fit_params": False, "verbosity": 0}
_ASKED = {
    "n_probs": CANDIDATES, "cache_prompt": False, "stream": True, "timings_per_token": True,
    "top_k": 0, "top_p": 1.0, "min_p": 0.0,
}  # fmt: skip
"""Settings of each request. Above temperature 0 a token is drawn from the whole vocabulary, as torch does."""
_LOOKS_S = 0.1
"""Between two looks at whether a request of which no part comes is to stop."""
ROOM = 4096
"""Usual room for prompt and text together, in tokens, if the model has as many positions: memory for their
keys and values is allocated in advance."""


class LlamaEngine(Engine):
    """Engine for GGUF files, on as many threads as torch has. llama.cpp rounds the inputs of products to 8
    bits."""

    name = "llama.cpp"

    def __init__(
        self, subject: Subject, file: Path, room: int, folder: tempfile.TemporaryDirectory[str] | None
    ) -> None:
        self.subject, self._folder = subject, folder
        gguf = open_gguf(file)
        self.held_bytes = sum(gguf.source.stored_bytes(info.name) for info in gguf.source.infos)
        self.stored_bytes = self.held_bytes
        self._room = min(room, gguf.setting("context_length", room))
        self._server: _Server | None = _Server(file, self._room)
        weakref.finalize(self, self._server.close)
        self.kernels = f"llama.cpp's products of GGUF types on the CPU ({self._server.kernels})"

    @staticmethod
    def refusal(subject: Subject) -> str:
        """The reason why llama.cpp cannot run ``subject`` here; empty if it can."""
        if find_spec(PACKAGE) is None:
            return f"{PACKAGE} is not installed (pip install {PACKAGE})"
        if subject.kind is SubjectKind.GGUF:
            return ""
        if subject.kind is SubjectKind.CODED:
            return "the codes of this checkpoint are in no GGUF file"
        try:
            folder = folder_of(subject.place, subject.revision)
            inputs = subject.recipe.input_schemes if subject.recipe else None
            checked(NAME, Plan(ModelFolder(folder), _layers(subject), inputs), needs_inputs=False)
        except (ValueError, SourceError) as error:
            return str(error)
        return ""

    @classmethod
    def load(
        cls,
        subject: Subject,
        device: torch.device,
        calibration: AnyTexts = (),
        progress: Progress | None = None,
        room: int = ROOM,
    ) -> Self:
        """Write a recipe's layers, or the model as it is, to a GGUF file in a temporary folder, and load
        that.

        ``close`` removes the folder; ``progress`` counts layers by methods. ``ValueError`` for the reason
        that ``refusal`` gives.
        """
        if why := cls.refusal(subject):
            raise ValueError(f"llama.cpp cannot run {subject.name}: {why}")
        if subject.file is not None:
            return cls(subject, subject.file, room, None)
        folder = tempfile.TemporaryDirectory(prefix="explorer-run-")
        try:
            file = _written(subject, Path(folder.name) / "gguf", device, calibration, progress)
            return cls(subject, file, room, folder)
        except BaseException:
            folder.cleanup()
            raise

    def close(self) -> None:
        if self._server is not None:
            self._server.close()
            self._server = None
        if self._folder is not None:
            self._folder.cleanup()
            self._folder = None

    def generate(
        self, prompt: str, tokens: int, sampling: Sampling = GREEDY
    ) -> Generator[Token | Told, None, None]:
        if self._server is None:
            raise ValueError(f"the engine is closed: open {self.subject.name} again to write with it")
        asked = {"prompt": prompt, "n_predict": tokens, "temperature": sampling.temperature}
        asked |= {"seed": sampling.seed, **_ASKED}
        parts = _Parts(self._server, asked)
        known, before = 0, time.perf_counter()
        try:
            for now, part in parts:
                if error := part.get("error"):
                    check_room(int(error.get("n_prompt_tokens", 0)), tokens, self._room, self.subject.name)
                    raise ValueError(f"llama.cpp refuses the prompt: {error.get('message', error)}")
                timings = part.get("timings") or {}
                if known == 0 and timings:
                    read = int(timings["prompt_n"])
                    if read == 0:
                        raise ValueError(f"the prompt {prompt[:80]!r} has no token of {self.subject.name}")
                    check_room(read, tokens, self._room, self.subject.name)
                    yield Told(read)
                choice = part["choices"][0]
                if choice["finish_reason"] is not None:
                    hidden, stops = int(timings["predicted_n"]) - known, choice["finish_reason"] == "stop"
                    for left in reversed(range(hidden)):
                        text, ends = "" if left else choice["text"], stops and not left
                        yield Token(None, text, (), (now - before) / hidden, ends)
                    rates = (float(timings[f"{what}_per_second"]) for what in ("prompt", "predicted"))
                    yield Told(int(timings["prompt_n"]), *rates)
                    return
                hidden = int(timings["predicted_n"]) - known - 1
                seconds = (now - before) / (hidden + 1)
                yield from (Token(None, "", (), seconds) for _ in range(hidden))
                yield _token(choice, seconds)
                known, before = known + hidden + 1, now
        finally:
            parts.stop()


class _Server:
    """llama.cpp in a process of its own, with the model in ``file`` and room for ``room`` tokens.
    ``ValueError`` if it cannot open the file; ``kernels``: the vector instructions that it uses."""

    def __init__(self, file: Path, room: int) -> None:
        self._process = subprocess.Popen(
            [sys.executable, "-P", llama_process.__file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True,
        )  # fmt: skip
        self._lock, self._open = threading.Lock(), dict[int, _Parts]()
        self._count, self._ended = 0, ""
        started = _Parts(self, None)
        threading.Thread(target=self._read, daemon=True).start()
        settings = {"n_ctx": room, **_SETTINGS}
        self._send({"file": str(file), "threads": usable_threads(), "settings": settings})
        try:
            self.kernels = _instructions(next(iter(started))[1])
            self.drop(0)
        except BaseException as error:
            self.close()
            if isinstance(error, ValueError):
                raise ValueError(f"llama.cpp cannot open {file.name}: {error}") from error
            raise

    def add(self, parts: _Parts) -> int:
        """Take ``parts`` among those that get answers; returns their number."""
        with self._lock:
            number, self._count = self._count, self._count + 1
            self._open[number] = parts
            if self._ended:
                parts.put("error", self._ended)
        return number

    def ask(self, number: int, asked: dict[str, Any] | None) -> None:
        """Send the request of one number; None ends it."""
        self._send([number, asked])

    def drop(self, number: int) -> None:
        """Forget one number: nobody reads its answers any more."""
        with self._lock:
            self._open.pop(number, None)

    def close(self) -> None:
        """End the process, whatever it does, and the texts."""
        with self._lock:
            for parts in self._open.values():
                parts.put("end")
            self._open.clear()
        self._process.kill()
        self._process.wait()
        if self._process.stdin is not None:
            with suppress(OSError):  # what was not sent any more
                self._process.stdin.close()

    def _send(self, line: object) -> None:
        assert self._process.stdin is not None
        with suppress(OSError, ValueError):  # it has ended, which its readers are told
            self._process.stdin.write(json.dumps(line) + "\n")
            self._process.stdin.flush()

    def _read(self) -> None:
        """Hand each line to those who wait for it; once there are no more, tell all of them."""
        assert self._process.stdout is not None
        with self._process.stdout as lines:
            for line in lines:
                number, kind, value = json.loads(line)
                with self._lock:
                    parts = self._open.get(number)
                if parts is not None:
                    parts.put(kind, value)
        code = self._process.wait()
        how = signal.Signals(-code).name if code < 0 else f"status {code}"
        with self._lock:
            self._ended = f"its process has ended by itself ({how})"
            for parts in self._open.values():
                parts.put("error", self._ended)


class _Parts:
    """Parts of llama.cpp's answer to one request; ``stop`` ends it after the token that is being computed."""

    def __init__(self, server: _Server, asked: dict[str, Any] | None) -> None:
        self._waiting: queue.Queue[tuple[float, str, Any]] = queue.Queue()
        self._server, self._number = server, server.add(self)
        if asked is not None:
            server.ask(self._number, asked)

    def put(self, kind: str, value: Any = None) -> None:
        self._waiting.put((time.perf_counter(), kind, value))

    def __iter__(self) -> Generator[tuple[float, Any], None, None]:
        """Yield each part with its time of arrival."""
        while True:
            try:
                now, kind, value = self._waiting.get(timeout=_LOOKS_S)
            except queue.Empty:
                checkpoint()
                continue
            if kind == "end":
                return
            if kind == "error":
                raise ValueError(plain(f"llama.cpp failed: {value}", 400))
            yield now, value

    def stop(self) -> None:
        self._server.drop(self._number)
        self._server.ask(self._number, None)


def _token(choice: dict[str, Any], seconds: float) -> Token:
    (said,) = choice["logprobs"]["content"][-1:]
    top = tuple(TokenCandidate(one["id"], one["token"], one["logprob"]) for one in said["top_logprobs"])
    # It holds back what is part of a character: a token with a number and no text is the last.
    return Token(said["id"], choice["text"], top, seconds, ends=not choice["text"])


def _written(
    subject: Subject, out: Path, device: torch.device, calibration: AnyTexts, progress: Progress | None
) -> Path:
    """Write the GGUF file of a subject's recipe, or of the model as it is."""
    recipe = subject.recipe or ModelRecipe(subject.place, subject.revision, "", _layers(subject))
    load = partial(subject.load, device)
    export(Wanted(recipe, NAME, out, subject.place, load, calibration), lambda what: progress)
    return out / FILE


def _layers(subject: Subject) -> dict[str, Recipe]:
    """Return the recipe's layers. The exporter needs at least one: for a model as it is, one layer is cast to
    its own dtype."""
    if subject.recipe is not None:
        return dict(subject.recipe.layers)
    source = open_source(subject.place, subject.revision)
    name = linear_names(source)[0]
    return {name: Recipe(Scheme.parse(_CASTS[source.info(f"{name}.weight").dtype]))}


def _instructions(info: str) -> str:
    """The package's version, and the vector instructions that llama.cpp was built for and found."""
    found = (entry.strip().removeprefix("CPU : ") for entry in info.split("|"))
    names = [entry.partition(" = ")[0] for entry in found if entry.endswith("= 1")]
    return f"{PACKAGE} {metadata.version(PACKAGE)}: {', '.join(names)}"
