"""The cost of quantized token embeddings for a causal model, beside the bytes saved in the file.

A copy of the network has that table alone rounded to nearest, and is run on some of the built-in held-out
texts. The prediction is that of a survey by Fisher's diagonal, on some of the built-in calibration texts. The
size is that of a GGUF file whose linear layers are all of one type, headers and vocabulary counted, as
`explorer recipe --size` counts it; nothing is written.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.target import Plan
from explorer.checkpoints.to_gguf import EXPORT
from explorer.core.backend import work_device
from explorer.methods.recipe import Recipe
from explorer.models.capture import load_model
from explorer.models.files import folder_of, linear_names
from explorer.models.text_files import built_in
from explorer.models.texts import AnyTexts
from explorer.recordings.files import NOT_RECORDED, Recording, record, recorded
from explorer.recordings.machine import this_machine
from explorer.schemes import SCHEMES
from explorer.schemes.scheme import label_of_text
from explorer.sources import open_source
from explorer.survey.assemble import assemble
from explorer.survey.evidence import gather, weights_of
from explorer.survey.loss import reference_for
from lab.tables import markdown

NAME = "vocabulary"
STORED = "fp16"
"""The storage of the table in converters."""
OF_TABLE = (STORED, "q8_0", "q6_k", "q5_1", "q5_0", "q4_k", "iq4_nl", "q4_1", "q4_0", "q3_k", "q2_k")
"""The table's types, as far as its rows allow: K-quants are in blocks of 256 values."""
SAMPLES = 12
"""Texts, drawn from the built-in ones, to calibrate by and to run."""
OTHERS = "q4_0"
"""The type of the linear layers in the file whose size is given."""


@dataclass(frozen=True)
class VocabularyRun:
    """One network that was run.

    ``table``: the scheme of the tokens' embeddings; ``others``: that of all linear layers, "" as they are
    stored. ``shape`` of the table; ``tied``: the head multiplies by it. ``table_bytes`` in the file, and
    ``file_bytes`` of one whose linear layers are ``OTHERS``. ``predicted``: the loss of the table by
    Fisher's diagonal. ``loss``: KL in nats a token with its 95 % interval over texts; ``same_top``: share of
    tokens with the same most probable successor.
    """

    model: str
    table: str
    others: str
    shape: tuple[int, int]
    tied: bool
    table_bytes: int
    file_bytes: int
    predicted: float
    loss: float
    low: float
    high: float
    same_top: float
    texts: int
    tokens: int


def record_vocabulary(model: str) -> Path:
    """Run ``model`` and write ``assets/measurements/vocabulary.json``, in some minutes."""
    drawn = (replace(built_in(f"causal-{of}"), samples=SAMPLES) for of in ("calibration", "held-out"))
    rows = tuple(run_vocabulary(model, *drawn))
    return record(NAME, Recording(this_machine(work_device(), ("transformers",)), rows))


def recorded_vocabulary() -> Recording[VocabularyRun]:
    """The recorded runs; empty if there are none."""
    return recorded(NAME, VocabularyRun)


def run_vocabulary(model: str, calibration: AnyTexts, held_out: AnyTexts) -> Iterator[VocabularyRun]:
    """The table by every scheme of ``OF_TABLE`` that its rows allow, and at last the linear layers by
    ``OTHERS``. ``ValueError`` for a model without a table of tokens' embeddings."""
    loaded, source = load_model(model, device=work_device(), head=True), open_source(model)
    folder = ModelFolder(folder_of(model))
    names = [info.name.removesuffix(".weight") for info in source.infos]
    table = next((name for name in names if folder.is_table(name)), "")
    if folder.skeleton is None or not table:
        raise ValueError(f"{model} has no table of tokens' embeddings")
    weight = source.matrix(f"{table}.weight").values.float()
    shape = (weight.shape[0], weight.shape[1])
    seen = reference_for(loaded, calibration)
    evidence = gather(loaded, seen, weights_of(loaded.network, {table: shape}))[table]
    reference = reference_for(loaded, held_out)
    linear = dict.fromkeys(linear_names(source), Recipe(SCHEMES[OTHERS]))
    for name, others in [*((name, "") for name in OF_TABLE), (STORED, OTHERS)]:
        scheme = SCHEMES[name]
        if EXPORT.refusal(scheme, shape):
            continue
        recipes = {table: Recipe(scheme)}
        made = assemble(loaded, {**recipes, **(linear if others else {})}, ()).network
        error = weight - made.get_parameter(f"{folder.skeleton.table}.weight").detach().float().cpu()
        found = reference.measure(made)
        yield VocabularyRun(
            loaded.name,
            name,
            others,
            shape,
            folder.skeleton.tied,
            round(EXPORT.stored_bits(scheme, shape, folder.dtype) * math.prod(shape) / 8),
            _file_bytes(folder, {**linear, **recipes}),
            evidence.cost(error),
            found.value,
            found.value if found.low is None else found.low,
            found.value if found.high is None else found.high,
            found.scores["same_top"],
            found.texts,
            found.tokens,
        )


def _file_bytes(folder: ModelFolder, recipes: Mapping[str, Recipe]) -> int:
    """The most that a GGUF file of the model takes."""
    plan = Plan(folder, recipes)
    assert EXPORT.around is not None
    sizes = {name: (one.scheme, plan.shape(name)) for name, one in recipes.items()}
    bits = (EXPORT.stored_bits(s, shape, folder.dtype) * math.prod(shape) for s, shape in sizes.values())
    return round(sum(bits) / 8) + EXPORT.around(plan)


def vocabulary_table(runs: Sequence[VocabularyRun]) -> str:
    """The runs as Markdown, the largest first; the linear layers' beside them."""
    rows = [
        [
            f"linear layers {label_of_text(run.others)}" if run.others else label_of_text(run.table),
            f"{run.table_bytes / 1e6:.1f}",
            f"{run.file_bytes / 1e6:.1f}",
            "–" if run.others else f"{run.predicted:.5f}",
            f"{run.loss:.5f} ± {(run.high - run.low) / 2:.5f}",
            f"{100 * run.same_top:.1f} %",
        ]
        for run in sorted(runs, key=lambda run: (bool(run.others), -run.table_bytes))
    ]
    titles = ["embeddings", "MB", "MB of the file", "predicted", "KL, nats a token", "same top token"]
    return markdown(titles, rows) if rows else f"({NOT_RECORDED})"
