"""Which engine runs a model, and why that one."""

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
    """The engine ``engine`` with ``subject`` loaded; by "auto" llama.cpp on a CPU for what a GGUF file holds,
    torch for all else. ``device``: where torch computes, None for the usual one. ``calibration``: what
    methods see, built-in texts if empty; ``progress`` counts layers. ``room``: tokens of prompt and text
    together: all that llama.cpp has room for, None for its usual one; torch makes room for more when a text
    is longer.

    ``ValueError`` for an unknown engine, and where the one that is asked for cannot run it; ``SourceError``
    for a model that cannot be loaded.
    """
    if engine not in NAMES:
        raise ValueError(f"no engine {engine!r}; there are {', '.join(NAMES)}")
    device = device or work_device()
    if engine == LlamaEngine.name:
        llama = LlamaEngine.load(subject, device, calibration, progress, room or ROOM)
        return _because("it was asked for", llama)
    if engine == TorchEngine.name:
        return _because("it was asked for", TorchEngine.load(subject, device, calibration, progress, room))
    why = _against_llama(subject, device)
    if not why:
        try:
            found = LlamaEngine.load(subject, device, calibration, progress, room or ROOM)
        except ValueError as error:  # of codes that only a method's run shows to be none of GGUF's
            why = str(error)
        else:
            return _because(_for_llama(subject), found)
    return _because(why, TorchEngine.load(subject, device, calibration, progress, room))


def open_like(
    engine: Engine, subject: Subject, device: torch.device | None = None, room: int | None = None
) -> Engine:
    """The engine of the kind of ``engine`` with another subject, the original, so that their speeds can be
    compared; torch where that kind cannot run it."""
    name, why = engine.name, "the same engine as of the model beside it"
    if name == LlamaEngine.name and (against := LlamaEngine.refusal(subject)):
        name, why = TorchEngine.name, against
    return _because(why, open_engine(subject, name, device, room=room))


def _because(why: str, engine: Engine) -> Engine:
    engine.why = why
    return engine


def _for_llama(subject: Subject) -> str:
    what = "the model is a GGUF file" if subject.kind is SubjectKind.GGUF else "all formats are GGUF types"
    return f"{what}, and xllamacpp is installed"


def _against_llama(subject: Subject, device: torch.device) -> str:
    """Why torch runs ``subject``, not llama.cpp; empty if it does not."""
    if device.type != "cpu":
        return "llama.cpp runs on the CPU here, and a GPU is there"
    if subject.kind is SubjectKind.PLAIN and subject.recipe is None:
        return "nothing is quantized"
    return LlamaEngine.refusal(subject)
