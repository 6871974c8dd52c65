"""Options shared by several commands, and the parsing of their texts."""

from __future__ import annotations

import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from typer.core import TyperCommand, TyperOption

if TYPE_CHECKING:
    from explorer.models.texts import AnyTexts
    from explorer.schemes import Scheme

SOURCES = "a tensor file, a model folder, a Hub id (owner/name) or sample:NAME"
TENSORS, MODELS, MEASURING = "Tensors", "Layers and models", "Measuring"
"""Panels of the help."""

Json = Annotated[bool, typer.Option("--json", help="Print JSON; the keys are the library's field names.")]
File = Annotated[str, typer.Argument(metavar="FILE", help=f"{SOURCES[0].upper()}{SOURCES[1:]}.")]
TensorName = Annotated[str | None, typer.Option("--tensor", help="Which tensor, if there are several.")]
Codes = Annotated[
    bool, typer.Option("--codes", help="Read a quantized weight's codes, not the values they stand for.")
]
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
TEXT_FILE = "a .txt file (a document a line), .jsonl, .json, .csv or .parquet"
Column = Annotated[
    str | None,
    typer.Option(
        help="The column of --text or --calibration with text or dialogues.",
        show_default="text, messages, conversations, or prompt and completion",
    ),
]
SequenceLength = Annotated[
    int | None,
    typer.Option(
        min=2,
        help="Join the documents and cut them into sequences of so many tokens, e.g. 2048.",
        show_default="a document a sequence, of at most 512 tokens (encoders: 128)",
    ),
]
Samples = Annotated[
    int | None, typer.Option(min=1, help="Run so many sequences, drawn at random.", show_default="all")
]


def naming_rows(text: str) -> str:
    """``text`` with the names of a table's rows in place of ``{METHODS}`` and ``{EXPORTS}``."""
    if "{METHODS}" in text:
        from explorer.methods import METHODS

        text = text.replace("{METHODS}", ", ".join(METHODS))
    if "{EXPORTS}" in text:
        from explorer.checkpoints import EXPORTS

        text = text.replace("{EXPORTS}", ", ".join(EXPORTS))
    return text


class NamingRows(TyperCommand):
    """A command whose options name rows of tables: the names are filled in when its help is asked for, as the
    tables import torch."""

    def get_help(self, ctx: Any) -> str:
        for option in self.params:
            if isinstance(option, TyperOption) and option.help:
                option.help = naming_rows(option.help)
        return super().get_help(ctx)


def examples(*commands: str) -> str:
    """The epilog of a command's help: a line for each example."""
    return examples_of("explorer", *commands)


def examples_of(program: str, *commands: str) -> str:
    """``examples`` of another program."""
    return "\n\n".join(["[bold]Examples[/bold]", *(f"$ {program} {command}" for command in commands)])


def split(text: str) -> list[str]:
    """The comma-separated parts of ``text``, without blanks around them; ``ValueError`` if there are none."""
    parts = [part.strip() for part in text.split(",") if part.strip()]
    if not parts:
        raise ValueError(f"expected a comma-separated list, got {text!r}")
    return parts


def check_out(path: str | None, suffix: str = ".safetensors") -> None:
    """``ValueError`` before any work if ``--out`` names no file of this suffix, or one in no folder."""
    if path is None:
        return
    if not Path(path).parent.is_dir():
        raise ValueError(f"--out {path}: there is no folder {Path(path).parent}")
    if Path(path).is_dir():
        raise ValueError(f"--out {path} is a folder; name a {suffix} file")
    if Path(path).exists() and not Path(path).is_file():
        raise ValueError(f"--out {path} is no regular file; it is not replaced")
    if not os.access(Path(path).parent, os.W_OK):
        raise ValueError(f"--out {path}: the folder {Path(path).parent} cannot be written")
    if Path(path).suffix.lower() != suffix:
        raise ValueError(f"--out {path}: what is written ends in {suffix}")


_OUTPUTS = ("--out", "--csv", "--pdf", "--record-to")
_MARKS = (
    b"quantization_explorer",
    b"Quantization Explorer",
    b"explorer_recipe",
    b'{"model":',
    b'{"machine":',
)
"""What files of these commands hold in their first or last bytes."""
_LOOKED_AT = 1 << 20


def keep_files(command: Any) -> None:
    """Give every command below ``command`` that writes a file the option ``--force``: without it, a file that
    another program made is not replaced. No command writes over a file that it reads."""
    for below in getattr(command, "commands", {}).values():
        keep_files(below)
    if not any(set(param.opts) & set(_OUTPUTS) for param in command.params):
        return
    command.params.append(_force())
    run = command.invoke

    def invoke(ctx: Any) -> Any:
        _check_outputs(ctx)
        return run(ctx)

    command.invoke = invoke


def _force() -> Any:
    """The option, as typer makes it; its value is kept in the context."""
    made = typer.Typer(add_completion=False)

    @made.command()
    def _command(
        force: Annotated[
            bool, typer.Option("--force", help="Replace a file that another program made.")
        ] = False,
    ) -> None: ...

    (option,) = (param for param in typer.main.get_command(made).params if param.name == "force")
    option.expose_value, option.callback = False, _remember
    return option


def _remember(ctx: Any, param: Any, value: bool) -> None:
    ctx.meta["force"] = bool(value)


def _check_outputs(ctx: Any) -> None:
    """``ValueError`` for an output that is an input, or a file of another program without ``--force``."""
    opts = {param.name: set(param.opts) & set(_OUTPUTS) for param in ctx.command.params}
    given = ((name, value) for name, value in ctx.params.items() if isinstance(value, str | Path) and value)
    read = [value for name, value in given if not opts[name]]
    for name, value in ctx.params.items():
        if not opts[name] or not value or not Path(value).is_file():
            continue
        flag, path = opts[name].pop(), Path(value)
        if any(_holds(where, path) for where in read):
            raise ValueError(f"{flag} {path} is read by this command: name another file")
        if not ctx.meta.get("force") and not _made_here(path):
            raise ValueError(f"{flag} {path} exists, and another program made it: --force replaces it")


def _holds(where: str | Path, path: Path) -> bool:
    """Whether ``where`` is the file ``path``, or the folder of a model that has its weights in it."""
    try:
        found = Path(where).expanduser().resolve()
        weights = path.suffix.lower() in (".safetensors", ".gguf")
        return found == path.resolve() or (weights and found.is_dir() and found == path.resolve().parent)
    except (OSError, RuntimeError, ValueError):  # a text that names no path
        return False


def _made_here(path: Path) -> bool:
    """Whether a file has a mark of this program, or is empty."""
    with path.open("rb") as file:
        size = file.seek(0, os.SEEK_END)
        file.seek(0)
        first = file.read(_LOOKED_AT)
        file.seek(max(size - _LOOKED_AT, 0))
        return not size or any(mark in first + file.read() for mark in _MARKS)


FILE_SUFFIXES = (".safetensors", ".npy", ".npz", ".pt", ".pth", ".csv", ".png", ".jpg", ".jpeg")
"""Of tensor files: those of ``sources.source_limits``, whose package imports torch."""


def check_file(where: str) -> None:
    """``ValueError`` before any work for a tensor file that is not there."""
    path = Path(where)
    if path.suffix.lower() in FILE_SUFFIXES and not path.is_file():
        raise ValueError(f"{path.name}: no such file")


def check_readable(path: str | None) -> None:
    """``OSError`` before any work if a file that an option or argument names cannot be opened."""
    if path is not None:
        Path(path).open("rb").close()


def check_model(where: str) -> None:
    """``ValueError`` before any work for what is neither there nor a Hub id."""
    if not Path(where).expanduser().exists() and not re.fullmatch(r"[\w.-]+(/[\w.-]+)?", where.strip()):
        raise ValueError(f"no folder {where[:200]!r} here, and it is no Hub id (owner/name)")


def parse_scheme(text: str) -> Scheme:
    """A scheme by name or spelled out; ``ValueError`` says what is wrong and what is accepted."""
    from explorer.schemes import Scheme

    return Scheme.parse(text)


def parse_schemes(texts: str | None) -> list[Scheme]:
    """The schemes of a comma-separated list; all of the table for None."""
    from explorer.schemes import SCHEMES

    return list(SCHEMES.values()) if texts is None else [parse_scheme(text) for text in split(texts)]


def read_files(
    *paths: str | None,
    column: str | None = None,
    sequence_length: int | None = None,
    samples: int | None = None,
) -> list[AnyTexts]:
    """The texts of each file, none of one that was not given; ``ValueError`` where none was given and options
    say how it is to be read."""
    from explorer.models.text_files import read_texts

    if not any(paths) and (column or sequence_length or samples):
        raise ValueError("--column, --sequence-length and --samples are of a file of texts: name one")
    return [read_texts(path, column, sequence_length, samples) if path else () for path in paths]


def sizes(text: str, count: int, form: str, of: str = "--shape") -> tuple[int, ...]:
    """(4096, 4096) of ``4096x4096``; ``ValueError`` unless there are ``count`` positive whole numbers."""
    try:
        numbers = tuple(int(part) for part in text.lower().split("x"))
    except ValueError:
        numbers = ()
    if len(numbers) != count or min(numbers) < 1:
        example = "x".join(["4096"] * count)
        raise ValueError(f"{of} {text}: expected a shape of {form} in whole numbers, e.g. {example}")
    return numbers


def whole_numbers(text: str, of: str) -> list[int]:
    """Comma-separated whole numbers from 1; ``ValueError`` for anything else."""
    parts = split(text)
    wrong = [part for part in parts if not part.isdecimal() or int(part) < 1]
    if wrong or not parts:
        raise ValueError(f"{of} takes whole numbers from 1 such as 1,16, got {text!r}")
    return [int(part) for part in parts]


def matrix_shapes(texts: list[str] | None) -> list[tuple[int, ...]] | None:
    """(rows, columns) of each ``--shape``; None where none was given."""
    return [sizes(text, 2, "rows x columns") for text in texts] if texts else None


def gemm_shapes(texts: list[str] | None) -> list[tuple[int, ...]] | None:
    """(M, N, K) of each ``--shape``; None where none was given."""
    return [sizes(text, 3, "M x N x K") for text in texts] if texts else None
