"""The choice of an engine for a model, with the reason."""

from __future__ import annotations

import torch

from explorer.core.backend import work_device
from explorer.models.texts import AnyTexts
from explorer.progress import Progress
from explorer.running.engine import Engine
from explorer.running.llama_engine import ROOM, LlamaEngine
from explorer.running.subject import Subject, SubjectKind
from explorer.running.torch_engine import TorchEngine

AUTO = "auto"
ENGINES: dict[str, type[Engine]] = {engine.name: engine for engine in (TorchEngine, LlamaEngine)}
NAMES = (AUTO, *ENGINES)


def open_engine(
    subject: Subject,
    engine: str = AUTO,
    device: torch.device | None = None,
    calibration: AnyTexts = (),
    progress: Progress | None = None,
    room: int | None = None,
) -> Engine:
    """Load ``subject`` in an engine. "auto" takes llama.cpp on a CPU if a GGUF file can hold the model, else
    torch.

    ``device``: the one that torch computes on, None for the usual one. ``calibration``: texts for methods,
    built-in ones if empty; ``progress`` counts layers. ``room``: tokens of prompt and text together, None for
    the usual number; longer texts fail in llama.cpp, while torch makes room. ``ValueError`` for an unknown
    engine, and if the engine cannot run the model; ``SourceError`` for a model that cannot be loaded.
    """
    if engine not in NAMES:
        raise ValueError(f"no engine {engine!r}; there are {', '.join(NAMES)}")
    device, asked = device or work_device(), "it was asked for"
    why = asked if engine == TorchEngine.name else ""
    if engine == AUTO:
        why = _against_llama(subject, device)
    if not why:
        try:
            found: Engine = LlamaEngine.load(subject, device, calibration, progress, room or ROOM)
        except ValueError as error:  # of codes that only a method's run shows to be none of GGUF's
            if engine != AUTO:
                raise
            why = str(error)
        else:
            what = "the model is a GGUF file" if subject.file else "all formats are GGUF types"
            found.why = f"{what}, and xllamacpp is installed" if engine == AUTO else asked
            return found
    found = TorchEngine.load(subject, device, calibration, progress, room)
    found.why = why
    return found


def open_like(
    engine: Engine, subject: Subject, device: torch.device | None = None, room: int | None = None
) -> Engine:
    """Load another subject, such as the original, in an engine like ``engine``, so that speeds can be
    compared; in torch if that engine cannot run it."""
    name, why = engine.name, "the same engine as of the model beside it"
    if name == LlamaEngine.name and (against := LlamaEngine.refusal(subject)):
        name, why = TorchEngine.name, against
    found = open_engine(subject, name, device, room=room)
    found.why = why
    return found


def _against_llama(subject: Subject, device: torch.device) -> str:
    """The reason to run ``subject`` on torch; empty if llama.cpp runs it."""
    if device.type != "cpu":
        return "llama.cpp runs on the CPU here, and a GPU is there"
    if subject.kind is SubjectKind.PLAIN and subject.recipe is None:
        return "nothing is quantized"
    return LlamaEngine.refusal(subject)
