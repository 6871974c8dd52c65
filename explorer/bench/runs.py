"""Timing of whole models: reading a prompt and writing a text, by each engine and scheme."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import torch

from explorer.methods.recipe import Recipe
from explorer.models.evaluate import held_out_texts
from explorer.models.texts import texts_of
from explorer.progress import checkpoint
from explorer.recordings.runs import RunTiming
from explorer.running import Subject, open_engine, subject_of
from explorer.running.llama_engine import LlamaEngine
from explorer.running.torch_engine import TorchEngine
from explorer.survey.loss import LossReference, reference_for

SCHEMES = ("q8_0", "q4_0")
"""Schemes that llama.cpp and torch both run."""
TOKENS = 64


def usual_prompt() -> str:
    """Return the first built-in held-out text."""
    text = texts_of(held_out_texts(causal=True)).documents[0]
    assert isinstance(text, str)
    return text


def time_runs(
    model: str,
    schemes: Sequence[str],
    device: torch.device,
    repeats: int,
    tokens: int = TOKENS,
    prompt: str | None = None,
) -> Iterator[RunTiming]:
    """Time the original, and the model under each of ``schemes``, in each engine that can run it. ``prompt``
    None: ``usual_prompt``.

    ``SourceError`` and ``ValueError`` as in ``subject_of`` and ``open_engine``.
    """
    prompt = usual_prompt() if prompt is None else prompt
    reference = _reference(subject_of(model), device)
    for scheme in ("", *schemes):
        subject = subject_of(model, Recipe.parse(scheme) if scheme else None)
        kl: float | None = None
        for name in (TorchEngine.name, LlamaEngine.name):
            if name == LlamaEngine.name and LlamaEngine.refusal(subject):
                continue
            checkpoint()
            with open_engine(subject, name, device) as engine:
                if isinstance(engine, TorchEngine) and scheme:
                    kl = reference.measure(engine.network).value
                runs = []
                for _ in range(repeats):
                    with engine.write(prompt, tokens) as writing:
                        list(writing)
                    runs.append(writing.figures)
                told = [run.told for run in runs if run.told]
                yield RunTiming(
                    model=subject.name,
                    scheme=scheme,
                    engine=name,
                    prompt_tokens=runs[0].prompt_tokens or 0,
                    tokens=runs[0].tokens,
                    prompt_per_second=_fastest(run.prompt_per_second for run in runs) or 0.0,
                    tokens_per_second=_fastest(run.tokens_per_second for run in runs) or 0.0,
                    told_prompt_per_second=_fastest(one.prompt_per_second for one in told),
                    told_tokens_per_second=_fastest(one.tokens_per_second for one in told),
                    held_bytes=engine.held_bytes,
                    stored_bytes=engine.stored_bytes,
                    kl=kl,
                    kl_tokens=reference.tokens,
                    repeats=repeats,
                )


def _reference(original: Subject, device: torch.device) -> LossReference:
    return reference_for(original.load(device), held_out_texts(causal=True))


def _fastest(values: Iterator[float | None]) -> float | None:
    """Choose the fastest of the repeats: other work on the machine only makes a run slower."""
    found = [value for value in values if value is not None]
    return max(found) if found else None
