"""The recorded run of the page's section *Run*: one prompt, continued by a model and by quantized ones."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path

import torch

from explorer.core.backend import work_device
from explorer.methods.recipe import Recipe
from explorer.recordings.files import Recording, record
from explorer.recordings.machine import this_machine
from explorer.running import Engine, Writing, compare, open_engine, open_like, subject_of
from explorer.running.transcript import NAME, USUAL_PROMPT, USUAL_TOKENS, Transcript

SCHEMES = ("q8_0", "q4_0", "int4_group64")
REPEATS = 5
"""Runs of each text, with equal results: the fastest is kept, since other work only slows a run down."""
PACKAGES = ("transformers", "xllamacpp")


def write_texts(
    model: str,
    device: torch.device,
    schemes: Sequence[str] = SCHEMES,
    tokens: int = USUAL_TOKENS,
    repeats: int = REPEATS,
) -> Iterator[Transcript]:
    """The original's text, by the engine that runs the first of ``schemes``, so that their speeds can be
    compared, and that by each of ``schemes``, compared with it. ``SourceError`` and ``ValueError`` as
    ``subject_of`` and ``open_engine`` raise them."""
    with (
        open_engine(subject_of(model, Recipe.parse(schemes[0])), device=device) as first,
        open_like(first, subject_of(model), device) as engine,
    ):
        original = _fastest(engine, tokens, repeats)
        yield Transcript.of(original).slim
        for scheme in schemes:
            subject = subject_of(model, Recipe.parse(scheme))
            with open_engine(subject, device=device) as other:
                changed = _fastest(other, tokens, repeats)
                yield Transcript.of(changed, scheme, compare(original, changed, device)).slim


def _fastest(engine: Engine, tokens: int, repeats: int) -> Writing:
    """The text, of ``repeats``, that was written in the least time."""
    found = []
    for _ in range(repeats):
        with engine.write(USUAL_PROMPT, tokens) as writing:
            list(writing)
        found.append(writing)
    return min(found, key=lambda writing: writing.figures.seconds)


def record_texts(model: str) -> Path:
    """Write ``assets/measurements/texts.json`` (minutes, on a machine that does nothing else)."""
    device = work_device()
    rows = tuple(write_texts(model, device))
    return record(NAME, Recording(this_machine(device, PACKAGES), rows))
