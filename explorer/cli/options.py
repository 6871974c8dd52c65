"""Options that several commands share, and the checks and parsing of their texts."""

from __future__ import annotations

import re
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from explorer.checkpoints.inputs import INPUTS
from explorer.cli.output import reporting

if TYPE_CHECKING:
    import torch

    from explorer.models.texts import AnyTexts
    from explorer.schemes import Scheme
    from explorer.sources.tensors import Matrix

SOURCES = "a tensor file, a model folder, a Hub id (owner/name) or sample:NAME"
TENSORS, MODELS, MEASURING = "Tensors", "Layers and models", "Measuring"
"""Panels of the help."""
TEXT_FILE = "a .txt file (a document a line), .jsonl, .json, .csv or .parquet"
FILE_SUFFIXES = (".safetensors", ".npy", ".npz", ".pt", ".pth", ".csv", ".png", ".jpg", ".jpeg")
"""Suffixes of tensor files, as in ``sources.source_limits``, whose package imports torch."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON; the keys are the library's field names.")]
Revision = Annotated[str | None, typer.Option("--revision", help="Branch, tag or commit on the Hub.")]
Activations = Annotated[
    str | None,
    typer.Option("--activations", help="Also quantize the inputs by this scheme, e.g. int8_row."),
]
Shapes = Annotated[
    list[str] | None, typer.Option("--shape", help="Rows x columns, e.g. 4096x4096; may be repeated.")
]
AllSchemes = Annotated[
    str | None, typer.Option("--schemes", help="Comma-separated schemes.", show_default="all")
]
Device = Annotated[
    str | None,
    typer.Option(
        "--device",
        metavar="auto|cpu|cuda",
        help="Where tensors are computed; auto takes a GPU if the kernels run on it.",
        show_default="EXPLORER_DEVICE, else auto",
    ),
]


def texts_option(purpose: str) -> Any:
    """Return an option that names a file of texts, or none for the built-in ones."""
    return typer.Option(None, help=f"Texts {purpose}: {TEXT_FILE}.", show_default="built-in texts")


@dataclass(frozen=True)
class Source:
    """The tensor that a command reads."""

    file: str = typer.Argument(metavar="FILE", help=f"{SOURCES[0].upper()}{SOURCES[1:]}.")
    tensor: str | None = typer.Option(None, help="Which tensor, if there are several.")
    revision: Revision = None

    def __post_init__(self) -> None:
        """``ValueError`` before any work for a tensor file that is not there."""
        path = Path(self.file)
        if path.suffix.lower() in FILE_SUFFIXES and not path.is_file():
            raise ValueError(f"{path.name}: no such file")

    def load(self, as_json: bool, codes: bool = False) -> Matrix:
        """Read the matrix, with progress; ``codes``: of a quantized weight its codes, not its values."""
        from explorer.sources import load_matrix

        with reporting("reading", as_json, in_bytes=True) as progress:
            return load_matrix(self.file, self.tensor, self.revision, progress=progress, codes=codes)


@dataclass(frozen=True)
class TextOptions:
    """The way that files of texts are read."""

    column: str | None = typer.Option(
        None,
        help="The column of the files of texts that holds text or dialogues.",
        show_default="text, messages, conversations, or prompt and completion",
    )
    sequence_length: int | None = typer.Option(
        None,
        min=2,
        help="Join the documents and cut them into sequences of so many tokens, e.g. 2048.",
        show_default="a document a sequence, of at most 512 tokens (encoders: 128)",
    )
    samples: int | None = typer.Option(
        None, min=1, help="Run so many sequences, drawn at random.", show_default="all"
    )

    def read(self, *paths: str | None) -> list[AnyTexts]:
        """Return the texts of each file, () for None; ``ValueError`` for settings without a file."""
        from explorer.models.text_files import read_texts

        how = (self.column, self.sequence_length, self.samples)
        if not any(paths) and any(how):
            raise ValueError("--column, --sequence-length and --samples are of a file of texts: name one")
        return [read_texts(path, *how) if path else () for path in paths]


@dataclass(frozen=True)
class RecipeLimits:
    """The budget of a recipe, and the layers and schemes that it is limited to."""

    bits: float | None = typer.Option(None, help="The budget: mean bits per weight, scales counted.")
    time: str | None = typer.Option(
        None,
        help="Or the time of all linear layers in one step, such as 12ms or 800us: measured on this "
        "machine's GPU, or without one as recorded on a named GPU. Attention, norms and sampling are not "
        "counted: they take the same time under every recipe.",
    )
    batch: int | None = typer.Option(
        None, min=1, help="With --time: tokens of the step, one of each text.", show_default="1"
    )
    target: str = typer.Option(
        "", "--for", help="Only schemes that a checkpoint format carries together: {EXPORTS}."
    )
    keep: str | None = typer.Option(
        None, help="Layers left as they are: parts of names or patterns, comma-separated."
    )
    inputs: str = typer.Option(
        "",
        help=f"Also quantize the layers' inputs, by {', '.join(INPUTS)}: then only schemes that are "
        "multiplied with such inputs are chosen. The last three have one fixed scale a layer, which texts "
        "are run for.",
        show_default="not quantized",
    )

    def __post_init__(self) -> None:
        """``ValueError`` before any work for options that do not go together."""
        if self.batch is not None and self.time is None:
            raise ValueError("--batch is of a budget of time: give --time")


COMMAND = ExitStack()
"""Exit stack of the running command; closing it restores the choice of a device."""


def use_device(choice: str | None) -> torch.device:
    """Compute on ``choice`` until the command ends, and return the device; None leaves it to the environment.

    ``ValueError`` for an unknown choice, and for cuda where the kernels cannot run.
    """
    from explorer.core.backend import use_device as place_by
    from explorer.core.backend import work_device

    if choice is not None:
        COMMAND.enter_context(place_by(choice))
    return work_device()


def split(text: str) -> list[str]:
    """Return the comma-separated parts of ``text``; ``ValueError`` if there are none."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"expected a comma-separated list, got {text!r}")
    return parts


def listed(text: str | None) -> tuple[str, ...]:
    """Split ``text`` as ``split`` does; empty for an option that was not given."""
    return tuple(split(text)) if text else ()


def check_suffix(flag: str, path: str | None, suffix: str = ".safetensors") -> None:
    """``ValueError`` if the file that an option names does not end in ``suffix``."""
    if path is not None and Path(path).suffix.lower() != suffix:
        raise ValueError(f"{flag} {path}: what is written ends in {suffix}")


def check_readable(*paths: str | None) -> None:
    """``OSError`` before any work if one of the files cannot be opened."""
    for path in filter(None, paths):
        Path(path).open("rb").close()


def check_model(where: str) -> None:
    """``ValueError`` before any work unless the text is a path on this machine or has the form of a Hub
    id."""
    if not Path(where).expanduser().exists() and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", where.strip()):
        raise ValueError(f"no folder {where[:200]!r} here, and it is no Hub id (owner/name)")


def parse_scheme(text: str) -> Scheme:
    """Return a scheme by its name or text; ``ValueError`` lists the accepted ones."""
    from explorer.schemes import Scheme

    return Scheme.parse(text)


def parse_schemes(texts: str | None) -> list[Scheme]:
    """Return the schemes of a comma-separated list; for None all named ones."""
    from explorer.schemes import SCHEMES

    return list(SCHEMES.values()) if texts is None else [parse_scheme(text) for text in split(texts)]


def sizes(text: str, form: str, flag: str = "--shape") -> tuple[int, ...]:
    """Return (4096, 4096) for ``4096x4096``; ``form``, such as "M x N x K", gives the number of sides."""
    parts, wanted = text.lower().split("x"), len(form.split(" x "))
    if len(parts) != wanted or not all(part.strip().isdecimal() and int(part) for part in parts):
        example = "x".join(["4096"] * wanted)
        raise ValueError(f"{flag} {text}: expected a shape of {form} in whole numbers, e.g. {example}")
    return tuple(map(int, parts))


def shapes_of(texts: list[str] | None, form: str = "rows x columns") -> list[tuple[int, ...]] | None:
    """Return the shapes of a repeated ``--shape``, None where it was not given."""
    return [sizes(text, form) for text in texts] if texts else None


def whole_numbers(text: str, flag: str) -> list[int]:
    """Return comma-separated whole numbers from 1; ``ValueError`` for anything else."""
    parts = split(text)
    if not all(part.isdecimal() and int(part) for part in parts):
        raise ValueError(f"{flag} takes whole numbers from 1 such as 1,16, got {text!r}")
    return [int(part) for part in parts]
