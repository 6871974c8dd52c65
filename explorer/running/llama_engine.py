"""The engine that runs GGUF files: llama.cpp on the CPU, through the package xllamacpp."""

from __future__ import annotations

import json
import queue
import secrets
import tempfile
import threading
import time
from collections.abc import Generator
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
from explorer.progress import Progress
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

PACKAGE = "xllamacpp"
_CASTS = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}
"""Dtypes of safetensors files -> the schemes that keep their values exactly."""
_SETTINGS = {"n_parallel": 1, "warmup": False, "n_gpu_layers": 0, "fit_params": False, "verbosity": 0}
_ASKED = {
    "n_probs": CANDIDATES, "cache_prompt": False, "stream": True, "timings_per_token": True,
    "top_k": 0, "top_p": 1.0, "min_p": 0.0,
}  # fmt: skip
"""Settings of each request. Above temperature 0 a token is drawn from the whole vocabulary, as torch does."""
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
        self._open: set[_Parts] = set()
        gguf = open_gguf(file)
        self.held_bytes = sum(gguf.source.stored_bytes(info.name) for info in gguf.source.infos)
        self.stored_bytes = self.held_bytes
        self._room = min(room, gguf.setting("context_length", room))
        self._server: Any = _server(file, self._room)
        self.kernels = f"llama.cpp's products of GGUF types on the CPU ({_instructions()})"

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
        for parts in list(self._open):
            parts.stop()
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
        self._open.add(parts)
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
                    hidden = int(timings["predicted_n"]) - known
                    for left in reversed(range(hidden)):
                        yield Token(None, "" if left else choice["text"], (), (now - before) / hidden)
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
            self._open.discard(parts)


class _Parts:
    """Parts of llama.cpp's answer to one request.

    llama.cpp calls back from the thread that sent the request, so each request has its own thread. ``stop``
    ends it after the token that is being computed.
    """

    def __init__(self, server: Any, asked: dict[str, Any]) -> None:
        self._waiting: queue.Queue[tuple[float, Any]] = queue.Queue()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._ask, args=(server, json.dumps(asked)), daemon=True)
        self._thread.start()

    def _ask(self, server: Any, asked: str) -> None:
        end: BaseException | None = None
        try:
            server.handle_completions(asked, self._take)
        except BaseException as error:  # raised again where the parts are read
            end = error
        self._put(end)

    def _take(self, part: str | dict[str, Any]) -> bool:
        self._put(part)
        return self._stopped.is_set()

    def _put(self, part: object) -> None:
        self._waiting.put((time.perf_counter(), part))

    def __iter__(self) -> Generator[tuple[float, dict[str, Any]], None, None]:
        """Yield each part with its time of arrival."""
        while (entry := self._waiting.get())[1] is not None:
            now, part = entry
            if isinstance(part, BaseException):
                raise ValueError(f"llama.cpp failed: {part}") from part
            yield now, json.loads(part) if isinstance(part, str) else part

    def stop(self) -> None:
        self._stopped.set()
        self._thread.join()


def _token(choice: dict[str, Any], seconds: float) -> Token:
    (said,) = choice["logprobs"]["content"][-1:]
    top = tuple(TokenCandidate(one["id"], one["token"], one["logprob"]) for one in said["top_logprobs"])
    return Token(said["id"], choice["text"], top, seconds)


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


def _server(file: Path, room: int) -> Any:
    """Start llama.cpp with the model in ``file``. It also listens at a local address, with a secret key.
    ``ValueError`` if it cannot open the file."""
    import xllamacpp

    asked = xllamacpp.CommonParams()
    asked.model.path = str(file)
    asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = usable_threads()
    asked.api_keys = [secrets.token_hex()]
    for name, value in {"n_ctx": room, **_SETTINGS}.items():
        setattr(asked, name, value)
    try:
        server = xllamacpp.Server(asked)
    except RuntimeError as error:
        raise ValueError(f"llama.cpp cannot open {file.name}: {error}") from error
    # A token that is not measured. After it the server's loop runs: freed before, it would wait for that loop
    # without end.
    server.handle_completions(json.dumps({"prompt": [0], "n_predict": 1}), lambda part: False)
    return server


def _instructions() -> str:
    """The package's version, and the vector instructions that llama.cpp was built for and found."""
    import xllamacpp

    found = (entry.strip().removeprefix("CPU : ") for entry in xllamacpp.get_system_info().split("|"))
    names = [entry.partition(" = ")[0] for entry in found if entry.endswith("= 1")]
    return f"{PACKAGE} {metadata.version(PACKAGE)}: {', '.join(names)}"
