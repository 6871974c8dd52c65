"""Files of one model by this project's recipes and by other programs, each judged by its own reader.

    source model -> GGUF as stored -> llama.cpp's logits   beside those of each GGUF file
                 -> transformers' logits in float32        beside those of each checkpoint

All see the same held-out tokens. Recipes are chosen from one survey by Fisher's diagonal on calibration
texts, of what each format carries; under importances its costs are those of weighed rounding. The importance
file is the same for both sides.
"""

from __future__ import annotations

import fnmatch
import json
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property, partial
from importlib import metadata
from importlib.util import find_spec
from pathlib import Path

import torch
from torch import Tensor, nn

from explorer.checkpoints import EXPORTS
from explorer.checkpoints.imatrix import write_imatrix
from explorer.checkpoints.model import ModelFolder
from explorer.checkpoints.to_gguf import FILE
from explorer.checkpoints.write import WEIGHT_FILES
from explorer.core.importances import takes_importance
from explorer.core.quantize import quantize
from explorer.export.ggml import ggml_type
from explorer.methods import label_of
from explorer.methods.recipe import Recipe
from explorer.models.capture import LONGEST, Model, load_model
from explorer.models.evaluate import built_in_texts, held_out_texts
from explorer.models.files import folder_of, linear_names
from explorer.models.skeleton import WEIGHT as SUFFIX
from explorer.models.texts import AnyTexts, Texts, texts_of, token_sequences
from explorer.progress import checkpoint
from explorer.recordings.quality import QualityRow
from explorer.schemes import SCHEMES, Scheme
from explorer.sources import open_source
from explorer.sources.base import SourceError, TensorSource
from explorer.survey import Constraints, ModelRecipe, Survey, frontier, recipe_of
from explorer.survey.carried import unplaced
from explorer.survey.export import Wanted, export
from explorer.survey.importances import imatrix_of, of_folder
from explorer.survey.loss import Loss, LossReference, reference_for
from explorer.survey.rows import Layer
from explorer.survey.run import SurveyJob, SurveyPlan, survey_layer, survey_model
from explorer.version import __version__
from lab.files.llama_logits import PACKAGE, LlamaNetwork
from lab.files.llama_quantizer import FTYPES, quantize_by_llama, quantizer_refusal, quantizer_version
from lab.files.peers import PEERS, peers_refusal, run_peer

BITS = (3.0, 3.5, 4.0, 4.5, 5.0, 6.0)
"""Per weight, of the whole file."""
CHECKPOINT_BITS = 4.5
EQUAL = "Q4_K_M"
"""The file of llama.cpp whose bytes a recipe is given."""
IN_CHECKPOINTS = (
    "int3_group64", "int3_group64_asym", "int4_group64", "int4_group64_asym", "int4_group32",
    "int4_group32_asym", "int5_group64_asym", "int6_group64_asym", "int8_row",
)  # fmt: skip
"""Schemes for checkpoints whose rows may be no multiple of 128. 4-bit floating point is left out: of
checkpoints with several schemes, compressed-tensors restores them in bfloat16 alone."""
SIGNAL, GGUF, CHECKPOINT = "fisher_diagonal", "gguf", "compressed-tensors"
WEIGHED, GPTQ = "-imatrix", "-gptq"
METHOD = "gptq_order"
"""The method of recipes with codes by a method: GPTQ by falling energy of the inputs."""
NF4, NF4_SCHEME = "bitsandbytes-nf4", "nf4_block64_double"
LENGTH = 128
"""Tokens of a text."""
OURS = f"Quantization Explorer {__version__}"


@dataclass(frozen=True)
class Made:
    """A file or folder, and the seconds that making it took. ``by``: the program, where it said so."""

    path: Path
    seconds: float
    note: str = ""
    by: str = ""

    @property
    def bytes(self) -> int:
        """Of all files of weights."""
        files = [self.path] if self.path.is_file() else self.path.iterdir()
        return sum(path.stat().st_size for path in files if path.suffix in WEIGHT_FILES)


@dataclass(eq=False)
class Workshop:
    """State shared by all rows: the model in ``where``, texts, and files in the folder ``room``. Each part is
    made when it is first asked for."""

    where: str
    room: Path
    held_out: Texts
    calibration: Texts
    jobs: list[SurveyJob] = field(default_factory=list)
    made: dict[str, Made] = field(default_factory=dict)

    @cached_property
    def folder(self) -> Path:
        return folder_of(self.where)

    @cached_property
    def model(self) -> Model:
        model = load_model(self.where, head=True)
        if not model.causal:
            raise SourceError(
                f"{model.name} predicts no tokens: files are compared by the KL of the next one"
            )
        return model

    def _loaded(self) -> Model:
        return self.model

    @cached_property
    def source(self) -> TensorSource:
        return open_source(self.where)

    @cached_property
    def weights(self) -> int:
        """Numbers in the model's tensors; a head that is tied to the embeddings counts once."""
        folder = ModelFolder(self.folder)
        return sum(
            info.elements
            for info in folder.infos
            if not (folder.tied and folder.is_head(info.name.removesuffix(SUFFIX)))
        )

    @cached_property
    def base(self) -> Path:
        """The GGUF file of the model as it is stored."""
        name = linear_names(self.source)[0]
        cast = {"F32": "fp32", "F16": "fp16", "BF16": "bf16"}[self.source.info(f"{name}{SUFFIX}").dtype]
        layers = {name: Recipe(Scheme.parse(cast))}
        export(Wanted(ModelRecipe(self.where, None, "", layers), GGUF, self.room / "base"))
        return self.room / "base" / FILE

    @cached_property
    def by_llama(self) -> LossReference:
        """llama.cpp's logits of ``base`` on the held-out texts."""
        return reference_for(replace(self.model, network=self.network_of(self.base)), self.held_out)

    @cached_property
    def by_torch(self) -> LossReference:
        """transformers' logits of the model on the held-out texts, in float32."""
        return reference_for(self.model, self.held_out)

    def network_of(self, file: Path) -> nn.Module:
        """The GGUF file as a network; it says what a tokenizer's positions are asked of."""
        network = LlamaNetwork(file, self.held_out.sequence_length or LONGEST)
        network.config = self.model.network.config
        return network

    @cached_property
    def imatrix(self) -> Path:
        """The importances of the calibration texts."""
        found, _ = imatrix_of(self.model, self.where, self.calibration, "calibration")
        write_imatrix(found, self.room / "imatrix.gguf")
        return self.room / "imatrix.gguf"

    @cached_property
    def importances(self) -> dict[str, Tensor]:
        """[K] of each layer that the importance file has."""
        any_that_takes = Recipe(SCHEMES["q4_0"])
        names = [layer.name for layer in self.survey.linear]
        return of_folder(self.imatrix, dict.fromkeys(names, any_that_takes), self.folder)

    @cached_property
    def survey(self) -> Survey:
        """The survey of GGUF's types, rounded without importances."""
        plan = SurveyPlan(self.where, None, gguf_schemes(), (SIGNAL,), self.calibration)
        return survey_model(plan, self.room / "survey.jsonl", rows=self._first_rows)

    def _first_rows(
        self, plan: SurveyPlan, source: TensorSource, jobs: Sequence[SurveyJob]
    ) -> Iterator[Layer]:
        self.jobs = list(jobs)
        yield from self._layers(GGUF, plan.schemes, {})

    @cached_property
    def weighed_survey(self) -> Survey:
        """The same, rounded under the importances."""
        head = self.survey.head
        return replace(self.survey, layers=tuple(self._layers(GGUF, head.schemes, self.importances)))

    @cached_property
    def checkpoint_survey(self) -> Survey:
        """The survey of schemes for checkpoints."""
        schemes = tuple(str(Scheme.parse(text)) for text in IN_CHECKPOINTS)
        head = replace(self.survey.head, schemes=schemes)
        return Survey(head, tuple(self._layers(CHECKPOINT, schemes, {})))

    def _layers(
        self, target: str, schemes: Sequence[str], importances: Mapping[str, Tensor]
    ) -> Iterator[Layer]:
        """Rows of all jobs. A scheme that the target cannot carry for a layer is not tried, and costs what
        the loss of all its weights does: a recipe for the target never takes it."""
        known = {text: Scheme.parse(text) for text in schemes}
        for job in self.jobs:
            checkpoint()
            importance = importances.get(job.info.name.removesuffix(SUFFIX))
            shape = job.info.matrix_shape
            refused = {text for text, scheme in known.items() if EXPORTS[target].refusal(scheme, shape)}
            yield survey_layer(self.source, job, known, restored=partial(_restored, importance, refused))

    def checkpoint_scores(self, folder: Path, by_peer: bool) -> tuple[Loss, str]:
        """The scores of a checkpoint, and its reader: transformers, that of the other program's interpreter
        where that has made it."""
        reader = f"transformers {metadata.version('transformers')}"
        if by_peer:
            restored = folder.with_name(f"{folder.name}-restored")
            reader = str(run_peer("read", str(folder), str(restored))["reader"])
            folder = restored
        return self.by_torch.measure(_opened(folder)), reader

    def file_of_recipe(self, name: str, size: float, weighed: bool, method: str = "") -> Made:
        """A GGUF file of at most ``size`` bytes by a recipe, embeddings and head chosen too. The codes of
        linear layers are those of ``method``, rounded to nearest if empty."""
        survey = self.weighed_survey if weighed else self.survey
        importances = self.importances if weighed else {}
        start, out = time.perf_counter(), self.room / name
        kept_to = Constraints(target=EXPORTS[GGUF], keep=tuple(unplaced(GGUF, survey)))
        choice = frontier(survey, "", kept_to).at_bytes(size)
        recipe = recipe_of(survey, choice, method=method, constraints=kept_to)
        taken = {
            layer: importances[layer]
            for layer, one in recipe.layers.items()
            if layer in importances and takes_importance(one.scheme) and not one.method
        }
        export(Wanted(recipe, GGUF, out, self.where, self._loaded, self.calibration, taken))
        return Made(out / FILE, time.perf_counter() - start, _schemes_of(recipe))

    def file_of_llama(self, mixture: str, weighed: bool) -> Made:
        """llama.cpp's file of ``mixture``, which is made once."""
        name = mixture + (WEIGHED if weighed else "")
        if name not in self.made:
            imatrix, out = (self.imatrix if weighed else None), self.room / f"{name}.gguf"
            base, start = self.base, time.perf_counter()
            replaced = quantize_by_llama(base, out, mixture, imatrix)
            self.made[name] = Made(out, time.perf_counter() - start, str(replaced))
        return self.made[name]

    def checkpoint_of_recipe(self, name: str, method: str, size: float | None = None) -> Made:
        """A checkpoint by a recipe: of ``CHECKPOINT_BITS`` for the linear layers, or of at most ``size``
        bytes."""
        survey = self.checkpoint_survey
        start, out = time.perf_counter(), self.room / name
        kept_to = Constraints(target=EXPORTS[CHECKPOINT], keep=tuple(unplaced(CHECKPOINT, survey)))
        front = frontier(survey, "", kept_to)
        choice = front.at(max(CHECKPOINT_BITS, front.least)) if size is None else front.at_bytes(size)
        recipe = recipe_of(survey, choice, method=method, constraints=kept_to)
        return self._checkpoint(CHECKPOINT, out, recipe, start)

    def checkpoint_of_nf4(self, name: str) -> Made:
        """The checkpoint that ``checkpoint_of_bitsandbytes`` is, with the codes of ``METHOD``."""
        start, out = time.perf_counter(), self.room / name
        kept = unplaced("bitsandbytes", self.survey)
        names = [layer.name for layer in self.survey.linear if not layer.is_table and layer.name not in kept]
        placed = {one: Recipe(SCHEMES[NF4_SCHEME], METHOD) for one in names}
        head = self.survey.head
        recipe = ModelRecipe(head.model, head.revision, "", placed)
        return self._checkpoint("bitsandbytes", out, recipe, start)

    def _checkpoint(self, target: str, out: Path, recipe: ModelRecipe, start: float) -> Made:
        export(Wanted(recipe, target, out, self.where, self._loaded, self.calibration))
        return Made(out, time.perf_counter() - start, _schemes_of(recipe))

    def checkpoint_of_peer(self, name: str) -> Made:
        """By another program in its own interpreter, which sees the calibration texts."""
        if name not in self.made:
            tokens = self.room / "tokens.json"
            sequences = token_sequences(self.model, self.calibration, LONGEST)
            tokens.write_text(json.dumps([list(map(int, one.inputs["input_ids"])) for one in sequences]))
            out = self.room / name
            said = run_peer(name, str(self.folder), str(tokens), str(out))
            self.made[name] = Made(out, said["seconds"], by=said["by"])
        return self.made[name]

    def checkpoint_of_bitsandbytes(self, name: str) -> Made:
        """NF4 with doubly quantized scales, by transformers."""
        if name not in self.made:
            self.made[name] = self._by_bitsandbytes(name)
        return self.made[name]

    def _by_bitsandbytes(self, name: str) -> Made:
        from transformers import AutoModelForCausalLM, BitsAndBytesConfig

        start = time.perf_counter()
        config = BitsAndBytesConfig(
            load_in_4bit=True,
            bnb_4bit_quant_type="nf4",
            bnb_4bit_use_double_quant=True,
            bnb_4bit_compute_dtype=torch.float32,
        )
        network = AutoModelForCausalLM.from_pretrained(
            self.folder, quantization_config=config, dtype="auto", device_map="cpu"
        )
        network.save_pretrained(self.room / name)
        return Made(self.room / name, time.perf_counter() - start)


def _restored(importance: Tensor | None, refused: set[str], weight: Tensor, text: str) -> Tensor:
    """``weight`` rounded by a scheme under an importance, where the scheme takes one; zeros by a refused
    scheme."""
    if text in refused:
        return torch.zeros_like(weight)
    scheme = Scheme.parse(text)
    weighed = importance if takes_importance(scheme) else None
    return quantize(weight, scheme, importance=weighed).dequantize()


def gguf_schemes() -> tuple[str, ...]:
    """One scheme for each type of ggml that is no cast: that of its name, where there is one."""
    found: dict[str, str] = {}
    for name, scheme in SCHEMES.items():
        kind = ggml_type(scheme)
        if scheme.scale is not None and kind is not None and (kind not in found or name == kind.lower()):
            found[kind] = name
    return tuple(found.values())


def _schemes_of(recipe: ModelRecipe) -> str:
    counts = sorted(recipe.counts.items(), key=lambda one: -one[1])
    return ", ".join(f"{count} × {text}" for text, count in counts)


@dataclass(frozen=True)
class QualityCandidate:
    """A row that is asked for. ``make`` gives its file; it is None where ``missing`` says why there is
    none."""

    name: str
    label: str
    by: Callable[[], str]
    ours: bool
    format: str
    make: Callable[[Workshop], Made] | None
    importances: bool = False
    missing: str = ""


def _recipes() -> Iterator[QualityCandidate]:
    sizes: dict[str, tuple[str, Callable[[Workshop, bool], float]]] = {
        f"recipe-as-{EQUAL}": (
            f"recipe, the bytes of {EQUAL}",
            lambda shop, weighed: shop.file_of_llama(EQUAL, weighed).bytes,
        )
    }
    for bits in BITS:
        sizes[f"recipe-{bits:g}"] = (
            f"recipe, {bits:g} bits",
            lambda shop, weighed, bits=bits: bits * shop.weights / 8,  # type: ignore[misc]
        )
    for ending, weighed, method, by in (
        (WEIGHED + GPTQ, True, METHOD, f", {label_of(METHOD)}"),
        (WEIGHED, True, "", ""),
        ("", False, "", ""),
    ):
        for name, (label, size) in sizes.items():
            yield QualityCandidate(
                name + ending,
                label + by,
                lambda: OURS,
                True,
                "GGUF",
                lambda shop, full=name + ending, size=size, weighed=weighed, method=method: (  # type: ignore[misc]
                    shop.file_of_recipe(full, size(shop, weighed), weighed, method)
                ),
                weighed,
            )


def _by_llama() -> Iterator[QualityCandidate]:
    for weighed in (True, False):
        for mixture in FTYPES:
            if weighed and mixture == "Q8_0":
                continue  # which importances do not change
            yield QualityCandidate(
                mixture + (WEIGHED if weighed else ""),
                mixture,
                _llama,
                False,
                "GGUF",
                lambda shop, m=mixture, w=weighed: shop.file_of_llama(m, w),  # type: ignore[misc]
                weighed,
            )


def _llama() -> str:
    return "llama.cpp" if quantizer_refusal() else f"llama.cpp, {quantizer_version()}"


def _checkpoints() -> Iterator[QualityCandidate]:
    sized = f"recipe, {CHECKPOINT_BITS:g} bits in linear layers"
    for name, label, method in (
        ("rtn", "rounded to nearest", ""),
        ("gptq", label_of("gptq"), "gptq"),
        (METHOD, label_of(METHOD), METHOD),
    ):
        full = f"{CHECKPOINT}-{name}"
        yield _checkpoint_row(
            full,
            f"{sized}, {label}",
            lambda shop, n=full, m=method: shop.checkpoint_of_recipe(n, m),  # type: ignore[misc]
        )
    without = "" if find_spec("bitsandbytes") else "not measured: pip install bitsandbytes"
    yield _as_large_as(NF4, "bitsandbytes' NF4", Workshop.checkpoint_of_bitsandbytes, without)
    yield QualityCandidate(
        f"{NF4}{GPTQ}",
        f"NF4, double quantization, {label_of(METHOD)}",
        lambda: OURS,
        True,
        "bitsandbytes",
        lambda shop: shop.checkpoint_of_nf4(f"{NF4}{GPTQ}"),
        missing=without,
    )
    yield QualityCandidate(
        NF4,
        "NF4, double quantization",
        lambda: _versioned("bitsandbytes"),
        False,
        "bitsandbytes",
        lambda shop: shop.checkpoint_of_bitsandbytes(NF4),
        missing=without,
    )
    for name, (label, package) in PEERS.items():
        refusal = peers_refusal()
        yield _as_large_as(name, label, Workshop.checkpoint_of_peer, refusal)
        yield QualityCandidate(
            name,
            label,
            lambda package=package: package,  # type: ignore[misc]
            False,
            CHECKPOINT if package == "llmcompressor" else package,
            lambda shop, name=name: shop.checkpoint_of_peer(name),  # type: ignore[misc]
            missing=refusal,
        )
    yield QualityCandidate(
        "gptqmodel",
        "GPTQModel",
        lambda: "gptqmodel",
        False,
        "–",
        None,
        missing="not measured: PyPI has no package of it that installs without a compiler for CUDA",
    )


def _as_large_as(
    name: str, label: str, other: Callable[[Workshop, str], Made], missing: str
) -> QualityCandidate:
    """This project's checkpoint with at most the bytes of another program's."""
    full = f"{CHECKPOINT}-as-{name}"
    row = _checkpoint_row(
        full,
        f"recipe, the bytes of {label}, {label_of(METHOD)}",
        lambda shop: shop.checkpoint_of_recipe(full, METHOD, other(shop, name).bytes),
    )
    return replace(row, missing=missing)


def _checkpoint_row(name: str, label: str, make: Callable[[Workshop], Made]) -> QualityCandidate:
    return QualityCandidate(name, label, lambda: OURS, True, CHECKPOINT, make)


def _versioned(package: str) -> str:
    """The package's name, with its version where it is installed."""
    return f"{package} {metadata.version(package)}" if find_spec(package) else package


def candidates(patterns: Sequence[str] = ()) -> tuple[QualityCandidate, ...]:
    """The rows whose names match one of ``patterns`` (``fnmatch``), all if none is given; ``ValueError`` for
    a pattern that matches none."""
    every = (*_recipes(), *_by_llama(), *_checkpoints())
    for pattern in patterns:
        if not any(fnmatch.fnmatchcase(one.name, pattern) for one in every):
            names = ", ".join(one.name for one in every)
            raise ValueError(f"no row is called {pattern!r}; there are {names}")
    return tuple(
        one for one in every if not patterns or any(fnmatch.fnmatchcase(one.name, p) for p in patterns)
    )


def measure_quality(
    where: str,
    chosen: Sequence[QualityCandidate],
    held_out: AnyTexts = (),
    calibration: AnyTexts = (),
    texts: int = 16,
) -> Iterator[QualityRow]:
    """A row for each of ``chosen``. Texts are ``texts`` sequences of ``LENGTH`` tokens, of the built-in ones
    where none are given. ``SourceError`` for a model that predicts no tokens or that no GGUF file holds."""
    seen, run_on = (
        texts_of(given) if given else replace(texts_of(built_in), sequence_length=LENGTH, samples=texts)
        for given, built_in in ((calibration, built_in_texts(True)), (held_out, held_out_texts(True)))
    )
    with tempfile.TemporaryDirectory(prefix="explorer-quality-") as room:
        shop = Workshop(where, Path(room), run_on, seen)
        for candidate in chosen:
            checkpoint()
            yield _row(shop, candidate)


def _row(shop: Workshop, candidate: QualityCandidate) -> QualityRow:
    missing = candidate.missing
    if not missing and candidate.format == "GGUF" and (not candidate.ours or EQUAL in candidate.name):
        missing = quantizer_refusal()
    empty = QualityRow(
        candidate.name,
        candidate.label,
        candidate.by() if not missing else candidate.by().partition(",")[0],
        candidate.ours,
        candidate.format,
        candidate.importances,
        missing=missing,
        model=shop.model.name,
    )
    if missing or candidate.make is None:
        return empty
    try:
        made = candidate.make(shop)
        if candidate.format == "GGUF":
            found = shop.by_llama.measure(shop.network_of(made.path))
            reader = f"llama.cpp ({PACKAGE} {metadata.version(PACKAGE)})"
        else:
            found, reader = shop.checkpoint_scores(made.path, candidate.name in PEERS)
    except (ValueError, SourceError, ImportError, RuntimeError) as error:  # the rows after it go on
        return replace(empty, missing=str(error))
    size = made.bytes
    if made not in shop.made.values():  # others are made as large as these
        _remove(made.path)
    return replace(
        empty,
        by=made.by or empty.by,
        bytes=size,
        bits=8 * size / shop.weights,
        kl=found.value,
        losses=found.each,
        same_top=found.scores["same_top"],
        tokens=found.tokens,
        seconds=made.seconds,
        judged_by=reader,
        note=made.note,
    )


def _opened(folder: Path) -> nn.Module:
    """A checkpoint as transformers opens it, in float32."""
    from transformers import AutoModelForCausalLM

    network: nn.Module = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, device_map="cpu")
    return network.eval()


def _remove(path: Path) -> None:
    """Room on the disk for the next."""
    if path.is_dir():
        shutil.rmtree(path)
    else:
        path.unlink()
