"""llama.cpp's own quantizer: ``llama_model_quantize`` of a shared library (libllama), called by ctypes.

The library is the one that the environment variable EXPLORER_LLAMA_LIBRARY names, from any build of
llama.cpp with shared libraries, or that of xllamacpp, if its build exports the function. The structures are
those of llama.h since typed importances (2026); the defaults that the library fills in are checked before
they are relied on."""

from __future__ import annotations

import ctypes
import os
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from explorer.checkpoints.imatrix import read_imatrix
from explorer.threads import usable_threads
from lab.files.llama_logits import PACKAGE, functions_of

LIBRARY = "EXPLORER_LLAMA_LIBRARY"
FTYPES = {
    "Q3_K_M": 12, "Q4_0": 2, "IQ4_NL": 25, "IQ4_XS": 30, "Q4_K_S": 14, "Q4_K_M": 15, "Q5_K_M": 17, "Q6_K": 18,
    "Q8_0": 7,
}  # fmt: skip
"""llama_ftype of llama.h: mixtures of types."""
_P, _I32 = ctypes.c_void_p, ctypes.c_int32
_DEFAULT_FTYPES = (2, 7, 8, 9)


class _Importance(ctypes.Structure):
    """llama_model_imatrix_data."""

    _fields_ = (("name", ctypes.c_char_p), ("data", _P), ("size", ctypes.c_size_t))


class _Params(ctypes.Structure):
    """llama_model_quantize_params up to the importances, and room for what follows."""

    _fields_ = (
        ("nthread", _I32),
        ("ftype", _I32),
        ("output_tensor_type", _I32),
        ("token_embedding_type", _I32),
        ("allow_requantize", ctypes.c_bool),
        ("quantize_output_tensor", ctypes.c_bool),
        ("only_copy", ctypes.c_bool),
        ("pure", ctypes.c_bool),
        ("keep_split", ctypes.c_bool),
        ("dry_run", ctypes.c_bool),
        ("imatrix", ctypes.POINTER(_Importance)),
        ("room", ctypes.c_uint64 * 32),
    )


_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, _P)
_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "llama_model_quantize_default_params": (_Params,),
    "llama_model_quantize": (ctypes.c_uint32, ctypes.c_char_p, ctypes.c_char_p, ctypes.POINTER(_Params)),
    "llama_log_set": (None, _LOG, _P),
    "ggml_version": (ctypes.c_char_p,),
}


@dataclass(frozen=True)
class Replaced:
    """The number of a file's tensors without their mixture's type, and the replacements: "q4_K → q5_0"."""

    tensors: int
    types: tuple[str, ...]

    def __str__(self) -> str:
        if not self.tensors:
            return ""
        which = ", ".join(self.types)
        of = "1 tensor" if self.tensors == 1 else f"{self.tensors} tensors"
        return f"other types for {of} whose rows are no multiple of 256: {which}"


def quantizer_refusal() -> str:
    """Why llama.cpp's quantizer cannot be called here; empty if it can."""
    try:
        _library()
    except (ValueError, OSError, ImportError) as error:
        return (
            f"llama.cpp's quantizer: {error}; {LIBRARY} names the libllama of a build with shared libraries, "
            "as llama.cpp's releases are"
        )
    return ""


def quantizer_version() -> str:
    """ "ggml 0.25.1"."""
    return f"ggml {_library().ggml_version().decode()}"


@cache
def _library() -> Any:
    named = os.environ.get(LIBRARY)
    if named:
        found = functions_of(ctypes.CDLL(named), _FUNCTIONS, Path(named).name)
    else:
        from xllamacpp import xllamacpp

        found = functions_of(ctypes.CDLL(xllamacpp.__file__), _FUNCTIONS, f"this build of {PACKAGE}")
    defaults = found.llama_model_quantize_default_params()
    if not (
        defaults.ftype in _DEFAULT_FTYPES
        and defaults.quantize_output_tensor
        and defaults.output_tensor_type == defaults.token_embedding_type
        and not (defaults.only_copy or defaults.pure or defaults.dry_run or defaults.imatrix)
    ):
        raise ValueError("the library lays its parameters out in another way")
    return found


def quantize_by_llama(base: Path, out: Path, mixture: str, imatrix: Path | None = None) -> Replaced:
    """Write the GGUF file ``out`` by llama.cpp's ``mixture`` (a key of ``FTYPES``) from ``base``, in 16 or 32
    bits, under the importances of a file if given. ``ValueError`` if llama.cpp fails."""
    library, said = _library(), []
    params = library.llama_model_quantize_default_params()
    params.ftype, params.nthread = FTYPES[mixture], usable_threads()
    values = {} if imatrix is None else read_imatrix(imatrix).tensors
    means = {name: one.mean.contiguous() for name, one in values.items()}
    entries = (_Importance * (len(means) + 1))()
    for entry, (name, mean) in zip(entries, means.items(), strict=False):
        entry.name, entry.data, entry.size = name.encode(), mean.data_ptr(), mean.numel()
    if means:
        params.imatrix = entries
    log = _LOG(lambda _level, text, _data: said.append(text.decode(errors="replace")))
    library.llama_log_set(log, None)
    try:
        status = library.llama_model_quantize(str(base).encode(), str(out).encode(), ctypes.byref(params))
    finally:
        library.llama_log_set(_LOG(), None)
    if status:
        raise ValueError(f"llama.cpp cannot make {mixture} of {base.name}: {''.join(said[-3:]).strip()}")
    return replaced_in("".join(said))


def replaced_in(log: str) -> Replaced:
    """The replaced types that llama.cpp's ``log`` tells of."""
    lines = [line for line in log.splitlines() if "falling back to" in line]
    types = dict.fromkeys(
        f"{line.partition('type')[2].partition(')')[0].split()[0]} → {line.split()[-1]}" for line in lines
    )
    return Replaced(len(lines), tuple(types))
