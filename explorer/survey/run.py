"""Survey a model: every linear layer, the head and the table of embeddings by every scheme.

    headers -> layers          one backward pass over texts -> Evidence
    layer's bytes -> GPU -> every scheme: quantize, restore, costs -> one JSON line

One layer's bytes are in memory at a time. A stopped survey continues after its last line; for a finished one
nothing is computed again.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from importlib import metadata
from pathlib import Path
from typing import BinaryIO

import torch
from torch import Tensor

from explorer import words
from explorer.core.backend import free_bytes, memory_bytes, place, work_device
from explorer.core.quantize import quantize_weight
from explorer.models.capture import Model, load_model
from explorer.models.evaluate import built_in_texts
from explorer.models.files import (
    Role,
    check_orientation,
    itemsize,
    matches,
    network_of,
    role_of,
    weights_sha256,
)
from explorer.models.kinds import depth_of, kind_of
from explorer.models.skeleton import WEIGHT as SUFFIX
from explorer.models.skeleton import HeldWeight, Skeleton
from explorer.models.texts import AnyTexts
from explorer.progress import Progress, checkpoint
from explorer.schemes import Scheme
from explorer.sources import open_source
from explorer.sources.base import SourceError, TensorInfo, TensorSource
from explorer.sources.gguf_file import SUFFIX as GGUF
from explorer.sources.models import layers as in_order
from explorer.sources.source_limits import LOCAL, SourceLimits
from explorer.survey.evidence import gather, weights_of
from explorer.survey.loss import NEXT_TOKEN, hash_of, reference_for
from explorer.survey.methods import bytes_of_rows, check_method, shares_of
from explorer.survey.rows import FIRST, Head, Layer, Survey, head_differs, line_of, load_survey
from explorer.survey.sensitivities import FISHER, SENSITIVITIES, WEIGHT, Evidence, squares
from explorer.version import __version__

SCHEMES = (
    "int2_group64_asym", "int3_group128", "int3_group128_asym", "int3_group64_asym", "int4_group128",
    "int4_group128_asym", "mxfp4", "nvfp4", "int4_group32_asym", "int5_group128_asym", "int6_group128_asym",
    "mxfp6_e2m3", "fp8_e4m3_row", "int8_row",
)  # fmt: skip
"""Usual schemes: from 2.3 to 8 bits, integers with and without zero points, and floating point."""
MOST_UNMATCHED = 0.2
"""Accepted share of linear weights in layers that the network lacks: a few are heads of tasks."""


@dataclass(frozen=True)
class SurveyPlan:
    """Request of a survey.

    schemes     texts of schemes
    signals     rows of ``SENSITIVITIES``; None: all, or the weight error alone if the model cannot be run
    texts       to calibrate by, the built-in ones if empty
    include     patterns of linear layers outside the language part that are surveyed too
    exclude     patterns (``models.files.matches``) of layers that stay as they are
    embeddings  True if the table of tokens' embeddings is surveyed, False if it is only listed
    methods     methods that choose codes alone, beside rounding; their shares of the loss are predicted
                (``survey.methods``)
    """

    model: str
    revision: str | None = None
    schemes: tuple[str, ...] = SCHEMES
    signals: tuple[str, ...] | None = None
    texts: AnyTexts = ()
    include: tuple[str, ...] = ()
    exclude: tuple[str, ...] = ()
    embeddings: bool = True
    methods: tuple[str, ...] = ()

    def __post_init__(self) -> None:
        if not self.schemes:
            raise ValueError("name at least one scheme to survey")
        for signal in self.signals or ():
            if signal not in SENSITIVITIES:
                raise ValueError(f"no signal {signal!r}; there are {', '.join(SENSITIVITIES)}")
        methods = tuple(dict.fromkeys(filter(None, map(check_method, self.methods))))
        if methods and not self.runs:
            raise ValueError(f"methods change a predicted loss, and {WEIGHT} predicts none: add {FISHER}")
        names = tuple(dict.fromkeys(str(Scheme.parse(text)) for text in self.schemes))
        object.__setattr__(self, "schemes", names)
        object.__setattr__(self, "methods", methods)

    @property
    def runs(self) -> bool:
        """True if the model is run."""
        return self.signals is None or FISHER in self.signals

    def surveys(self, role: Role | None) -> bool:
        """True if layers of ``role`` get costs."""
        return role in (Role.LINEAR, Role.HEAD) or (self.embeddings and role is Role.EMBEDDING)

    def calibration(self, causal: bool) -> AnyTexts:
        """The texts to run; the built-in ones depend on whether the model predicts the next token."""
        return self.texts or built_in_texts(causal)


@dataclass(frozen=True, eq=False)
class SurveyJob:
    """One layer to survey: the place of its bytes, and its evidence. ``listed``: it gets no costs."""

    info: TensorInfo
    role: Role
    evidence: Evidence | None
    reached: bool = True
    listed: bool = False


Rows = Callable[[SurveyPlan, TensorSource, Sequence[SurveyJob]], Iterator[Layer]]
"""Function that surveys jobs and yields each result as soon as it is there, in any order."""


def survey_model(
    plan: SurveyPlan,
    out: str | Path,
    limits: SourceLimits = LOCAL,
    progress: Progress | None = None,
    run_progress: Progress | None = None,
    rows: Rows | None = None,
) -> Survey:
    """Survey a model into the file ``out``, or continue a stopped survey there, or open a finished one.

    ``progress`` counts layers, ``run_progress`` the steps of running the model before them. An exception of
    either, or of ``checkpoint``, stops the survey; the file keeps the layers so far. ``rows`` computes layers
    (``in_this_process``). ``ValueError`` for a model without linear layers, signals that are not available,
    and a file of another survey.
    """
    out = Path(out)
    size = out.stat().st_size if out.exists() else 0
    found = load_survey(out) if _begun(out) else None
    source = open_source(plan.model, plan.revision, limits)
    if source.broken:
        raise SourceError(f"{source.origin}: {source.broken[0]}")
    if source.problems:
        raise SourceError(f"{source.origin}: {source.problems[0]}")
    network = network_of(source)
    infos = _roles(plan, network, in_order(source))
    listed = [(info, role) for info, role in infos if role is not None]
    check_orientation(source)
    if not any(role is Role.LINEAR for _, role in listed):
        left = "no linear layers in floating point" if not plan.exclude else "no linear layers left to survey"
        raise SourceError(f"{source.origin} has {left}")
    sha256 = weights_sha256(source)
    if found is not None:
        _check_same(out, found.head, plan, sha256, len(listed))
        if found.complete:
            return found
        plan = replace(plan, signals=found.head.signals, methods=found.head.methods)
    parameters = sum(info.elements for info, _ in infos)
    matrices = {info: role for info, role in listed if plan.surveys(role)}
    ran = _run(plan, matrices, parameters, limits, run_progress)
    head = found.head if found else _head_of(plan, ran, sha256, infos, network)
    done = {layer.name for layer in found.layers} if found else set()
    jobs = [
        SurveyJob(
            info,
            role,
            ran.evidence.get(_layer(info)),
            not plan.surveys(role) or not ran.loss or _layer(info) in ran.evidence,
            not plan.surveys(role),
        )
        for info, role in listed
        if _layer(info) not in done
    ]
    with _opened(out, head, found is not None, size) as file:
        for layer in (rows or in_this_process)(plan, source, jobs):
            file.write(line_of(layer).encode())
            file.flush()
            done.add(layer.name)
            if progress is not None:
                progress(len(done), len(listed))
    return load_survey(out)


def _roles(
    plan: SurveyPlan, network: Skeleton | None, infos: Sequence[TensorInfo]
) -> list[tuple[TensorInfo, Role | None]]:
    """Each tensor with its role as ``plan`` asks; ``SourceError`` for patterns that no layer matches."""
    found, missed = [], dict.fromkeys((*plan.include, *plan.exclude))
    for info in infos:
        role, name = role_of(info, network), _layer(info)
        beside = role is None and network is not None and _is_linear(network, info)
        for pattern in plan.include if beside else ():
            if matches(name, pattern):
                role, _ = Role.LINEAR, missed.pop(pattern, None)
        for pattern in plan.exclude if plan.surveys(role) else ():
            if matches(name, pattern):
                role, _ = None, missed.pop(pattern, None)
        found.append((info, role))
    if missed:
        pattern = next(iter(missed))
        what = "linear layer beside the language part" if pattern in plan.include else "layer to survey"
        raise SourceError(f"no {what} of {plan.model} matches {pattern!r}")
    return found


def _is_linear(network: Skeleton, info: TensorInfo) -> bool:
    name = _layer(info)
    return name != info.name and len(info.shape) == 2 and bool(network.place(name, info.shape).module)


def _kept_parts(
    infos: Sequence[tuple[TensorInfo, Role | None]], network: Skeleton | None, plan: SurveyPlan
) -> dict[str, int]:
    """Sum the bytes of the tensors that stay as they are, by kind."""
    parts: dict[str, float] = {}
    for info, role in infos:
        if plan.surveys(role):
            continue
        if role is not None:
            what = "stacked experts" if role is Role.EXPERTS else "embeddings"
        elif any(matches(_layer(info), pattern) for pattern in plan.exclude):
            what = "excluded layers"
        elif network is not None and _is_linear(network, info):
            what = "linear layers beside the language part"
        else:
            what = "norms, biases and others"
        parts[what] = parts.get(what, 0.0) + info.elements * itemsize(info.dtype)
    return {what: round(size) for what, size in parts.items()}


def _head_of(
    plan: SurveyPlan,
    ran: _Ran,
    sha256: str,
    infos: Sequence[tuple[TensorInfo, Role | None]],
    network: Skeleton | None,
) -> Head:
    """Make the first line of a new survey of a model's tensors."""
    parts = _kept_parts(infos, network, plan)
    return Head(
        model=plan.model,
        revision=plan.revision,
        weights_sha256=sha256,
        schemes=plan.schemes,
        signals=(WEIGHT, FISHER) if ran.loss else (WEIGHT,),
        default=FISHER if ran.loss else WEIGHT,
        layers=sum(role is not None for _, role in infos),
        parameters=sum(info.elements for info, _ in infos),
        kept_bytes=sum(parts.values()),
        kept_parts=parts,
        include=plan.include,
        exclude=plan.exclude,
        embeddings=plan.embeddings,
        methods=plan.methods,
        loss=ran.loss,
        why=ran.why,
        texts=ran.texts,
        tokens=ran.tokens,
        texts_left_out=ran.left_out,
        part=ran.part,
        texts_sha256=hash_of(plan.calibration(ran.loss == NEXT_TOKEN)) if ran.loss else "",
        versions=versions(),
    )


def in_this_process(plan: SurveyPlan, source: TensorSource, jobs: Sequence[SurveyJob]) -> Iterator[Layer]:
    """Survey the jobs one after another in this process, on the GPU if there is one."""
    schemes = {text: Scheme.parse(text) for text in plan.schemes}
    for job in jobs:
        checkpoint()
        yield survey_layer(source, job, schemes, plan.methods)


def survey_layer(
    source: TensorSource,
    job: SurveyJob,
    schemes: Mapping[str, Scheme],
    methods: Sequence[str] = (),
    restored: Callable[[Tensor, str], Tensor] | None = None,
) -> Layer:
    """Survey one layer: read its bytes once, round it by every scheme, and predict the losses of ``methods``.

    ``restored`` (weight [N, K], name of a scheme -> restored weight) replaces rounding to nearest.
    ``ValueError`` names the layer if it cannot be read or holds NaN or Inf.
    """
    start, name, info = time.perf_counter(), _layer(job.info), job.info
    shape = info.matrix_shape
    layer = Layer(name, shape, info.dtype, job.role, kind_of(name), depth_of(name), reached=job.reached)
    if job.listed:
        return layer
    weight = source.matrix(info.name).values
    weight = place(weight).move(weight)
    evidence = job.evidence if job.reached else None
    costs: dict[str, dict[str, float]] = {WEIGHT: {}} if evidence is None else {WEIGHT: {}, FISHER: {}}
    for text, scheme in schemes.items():
        checkpoint()
        try:
            after = restored(weight, text) if restored else quantize_weight(weight, scheme).dequantize()
            error = after.neg_().add_(weight)
        except ValueError as refused:
            raise ValueError(f"{name}, by {text}: {refused}") from refused
        costs[WEIGHT][text] = squares(error)
        if evidence is not None:
            costs[FISHER][text] = evidence.cost(error)
    bits = {text: scheme.bits_per_element(shape).total for text, scheme in schemes.items()}
    layer = replace(layer, squares=squares(weight), bits=bits, costs=costs)
    if evidence is not None:
        judged = evidence.methods if methods else None
        shares = {} if judged is None else shares_of(weight, schemes, judged, methods)
        layer = replace(layer, fisher=evidence.fisher, folds=evidence.folds, texts=evidence.texts)
        layer = replace(layer, methods=shares)
    return replace(layer, seconds=time.perf_counter() - start)


def versions() -> dict[str, str]:
    """The versions that a survey's numbers depend on."""
    return {
        "explorer": __version__,
        "torch": torch.__version__,
        "transformers": metadata.version("transformers"),
    }


@dataclass(frozen=True, eq=False)
class _Ran:
    """Result of running the model: ``loss`` is empty, and ``why`` gives the reason, if it was not run."""

    evidence: Mapping[str, Evidence]
    loss: str = ""
    why: str = ""
    texts: int = 0
    tokens: int = 0
    left_out: int = 0
    part: str = ""


def _run(
    plan: SurveyPlan,
    layers: Mapping[TensorInfo, Role],
    parameters: int,
    limits: SourceLimits,
    progress: Progress | None,
) -> _Ran:
    """Run the model for gradients. It is skipped if only the weight error was asked for, or if nothing was
    asked for and the model cannot be run."""
    if not plan.runs:
        return _Ran({}, why="only the weight error was asked for")
    try:
        if Path(plan.model).suffix.lower() == GGUF:
            raise SourceError(
                "a GGUF file is not run here; its layers are surveyed as their codes restore them"
            )
        _check_memory(plan, parameters, layers)
        model = load_model(plan.model, plan.revision, work_device(), limits, head=True)
        reference = reference_for(model, plan.calibration(model.causal))
        weights = _weights(model, layers)
    except SourceError as error:
        if plan.signals is not None or plan.methods:
            raise
        return _Ran({}, why=str(error))
    evidence = gather(model, reference, weights, progress, bool(plan.methods))
    if not evidence:
        raise SourceError(
            f"{plan.model}: its loss on text depends on none of its {len(layers)} linear layers"
        )
    texts = len(reference.sequences)
    return _Ran(evidence, reference.kind, "", texts, reference.tokens, reference.left_out, model.part)


def _weights(model: Model, layers: Mapping[TensorInfo, Role]) -> dict[str, HeldWeight]:
    """Find the weight of each layer in the network; ``SourceError`` if so many are missing that losses would
    describe another model: transformers transposes some layers, and merges others."""
    found = weights_of(model.network, {_layer(i): (i.shape[0], i.shape[1]) for i in layers})
    linear = [info for info, role in layers.items() if role is Role.LINEAR]
    left = [info for info in linear if _layer(info) not in found]
    share = sum(info.elements for info in left) / sum(info.elements for info in linear)
    if share > MOST_UNMATCHED:
        raise SourceError(
            f"{len(left)} of the {len(linear)} matrices of {model.name}, {100 * share:.3g} % of their "
            f"weights, such as {_layer(left[0])}, are no linear layers of the network that transformers "
            "builds of them"
        )
    return found


def _check_memory(plan: SurveyPlan, parameters: int, layers: Mapping[TensorInfo, Role]) -> None:
    """``SourceError`` unless the network, a gradient and the diagonal fit into the memory of the device that
    runs it, and the rows of inputs for methods into main memory. Signals asked for by name are tried in any
    case."""
    device, main = work_device(), 0.7 * memory_bytes()
    on_cpu = device.type == "cpu"
    available = main if on_cpu else 0.9 * free_bytes(device)
    widths = [info.shape[1] for info, role in layers.items() if role is not Role.EMBEDDING]
    kept = bytes_of_rows(widths) if plan.methods else 0
    network = 0 if plan.signals else 3 * 4 * parameters
    if network + (kept if on_cpu else 0) <= available and kept <= main:
        return
    what = f"{words.count(parameters)} weights in float32 and what a backward pass adds"
    if kept:
        what += f", or {words.bytes_(kept)} of layers' inputs for methods in main memory,"
    where = "memory for it" if on_cpu else "free GPU memory"
    raise SourceError(f"{what} do not fit into the {words.bytes_(available)} of {where}")


def _check_same(out: Path, found: Head, plan: SurveyPlan, sha256: str, layers: int) -> None:
    """``ValueError`` unless the file ``out`` belongs to the same survey."""
    asked = (WEIGHT, FISHER) if plan.runs else (WEIGHT,)
    wanted = replace(
        found,
        model=plan.model,
        revision=plan.revision,
        weights_sha256=sha256,
        schemes=plan.schemes,
        layers=layers,
        include=plan.include,
        exclude=plan.exclude,
        embeddings=plan.embeddings,
        methods=found.methods if set(plan.methods) == set(found.methods) else plan.methods,
        signals=found.signals if plan.signals is None else asked,
        texts_sha256=hash_of(plan.calibration(found.loss == NEXT_TOKEN)) if found.loss else "",
        versions={**found.versions, "explorer": __version__},
    )
    if other := list(head_differs(found, wanted)):
        raise ValueError(f"{out.name} is another survey: {'; '.join(other)}. Name another file, or delete it")


def _begun(out: Path) -> bool:
    """True for a file to continue, or to refuse. An empty file, and one that was cut off within its first
    line, are begun anew."""
    if not out.exists():
        return False
    with out.open("rb") as file:
        begin = file.read(1 << 24)
    return b"\n" in begin or begin[: len(FIRST)] != FIRST[: len(begin)]


def _layer(info: TensorInfo) -> str:
    return info.name.removesuffix(SUFFIX)


@contextmanager
def _opened(out: Path, head: Head, going_on: bool, size: int) -> Iterator[BinaryIO]:
    """Open the file behind its last complete line; a new one begins with ``head``. ``ValueError`` if another
    survey writes it, or has done so since it had ``size`` bytes."""
    with out.open("r+b" if going_on else "ab") as file:
        _hold(file, out)
        if os.fstat(file.fileno()).st_size != size:
            raise ValueError(f"{out.name} was written by another survey meanwhile; give the command again")
        if going_on:
            whole = file.read().rfind(b"\n") + 1
            file.seek(whole)
            file.truncate()
        else:
            file.truncate(0)
            file.write(line_of(head).encode())
            file.flush()
        yield file


def _hold(file: BinaryIO, out: Path) -> None:
    """Keep other processes from writing the same survey while ``file`` is open; ``ValueError`` if one does. A
    system without such locks has no protection."""
    try:
        import fcntl
    except ImportError:  # Windows
        return
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError as error:
        raise ValueError(f"{out.name} is being written by another survey") from error
    except OSError:  # a file system without locks
        return
