"""llama.cpp's logits of every token of a text, from the shared library in the package xllamacpp.

A server's answers contain only the most probable tokens; a KL divergence needs all. llama.h's functions are
called by ctypes. Structures that the library fills in (``llama_context_params``) are passed on unchanged,
except for their first fields; the effect of these is read back. A build that lacks a function is refused by
the function's name."""

from __future__ import annotations

import ctypes
import weakref
from functools import cache
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import torch
from torch import Tensor, nn

from explorer.threads import usable_threads

PACKAGE = "xllamacpp"
_P, _I32, _U32 = ctypes.c_void_p, ctypes.c_int32, ctypes.c_uint32
_ROOM = 256
"""Room for a structure of unknown size, in 32-bit words: several times its size today."""


class _Params(ctypes.Structure):
    """llama_model_params or llama_context_params; of the latter the first fields are n_ctx, n_batch and
    n_ubatch."""

    _fields_ = (("words", _U32 * _ROOM),)


class _Batch(ctypes.Structure):
    """llama_batch, and room for fields of later builds."""

    _fields_ = (
        ("n_tokens", _I32),
        ("token", ctypes.POINTER(_I32)),
        ("embd", _P),
        ("pos", ctypes.POINTER(_I32)),
        ("n_seq_id", ctypes.POINTER(_I32)),
        ("seq_id", ctypes.POINTER(ctypes.POINTER(_I32))),
        ("logits", ctypes.POINTER(ctypes.c_int8)),
        ("room", _U32 * _ROOM),
    )


_FUNCTIONS: dict[str, tuple[Any, ...]] = {
    "llama_model_default_params": (_Params,),
    "llama_context_default_params": (_Params,),
    "llama_model_load_from_file": (_P, ctypes.c_char_p, _Params),
    "llama_model_free": (None, _P),
    "llama_model_get_vocab": (_P, _P),
    "llama_vocab_n_tokens": (_I32, _P),
    "llama_init_from_model": (_P, _P, _Params),
    "llama_free": (None, _P),
    "llama_set_n_threads": (None, _P, _I32, _I32),
    "llama_n_ctx": (_U32, _P),
    "llama_n_ubatch": (_U32, _P),
    "llama_get_memory": (_P, _P),
    "llama_memory_clear": (None, _P, ctypes.c_bool),
    "llama_batch_init": (_Batch, _I32, _I32, _I32),
    "llama_batch_free": (None, _Batch),
    "llama_decode": (_I32, _P, _Batch),
    "llama_get_logits": (ctypes.POINTER(ctypes.c_float), _P),
    "llama_log_set": (None, _P, _P),
}
"""Result and arguments of each function."""
_LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, ctypes.c_char_p, _P)
_SILENT = _LOG(lambda _level, _text, _data: None)


@cache
def _llama() -> Any:
    from xllamacpp import xllamacpp

    return functions_of(ctypes.CDLL(xllamacpp.__file__), _FUNCTIONS, f"this build of {PACKAGE}")


def functions_of(library: ctypes.CDLL, functions: dict[str, tuple[Any, ...]], whose: str) -> Any:
    """Load functions of a shared library as attributes; ``functions``: name -> result and arguments.
    ``ValueError`` names a function that the library lacks."""
    found = SimpleNamespace()
    for name, (result, *arguments) in functions.items():
        if not hasattr(library, name):
            raise ValueError(f"{whose} does not export {name}")
        function = getattr(library, name)
        function.restype, function.argtypes = result, arguments
        setattr(found, name, function)
    return found


class LlamaNetwork(nn.Module):
    """A GGUF file's model with the interface of transformers: ``network(input_ids=ids).logits`` is float32
    [1, tokens, vocabulary], for one text of up to ``longest`` tokens.

    llama.cpp rounds inputs of products with codes to 8 bits. ``ValueError`` for a file that llama.cpp cannot
    open, a longer text, and a build that gives a context of another length."""

    def __init__(self, file: Path, longest: int) -> None:
        super().__init__()
        llama = _llama()
        llama.llama_log_set(ctypes.cast(_SILENT, _P), None)
        model = llama.llama_model_load_from_file(str(file).encode(), llama.llama_model_default_params())
        if not model:
            raise ValueError(f"llama.cpp cannot open {file.name}")
        weakref.finalize(self, llama.llama_model_free, model)
        params = llama.llama_context_default_params()
        params.words[0] = params.words[1] = params.words[2] = max(longest, 64)
        self._context = llama.llama_init_from_model(model, params)
        if not self._context:
            raise ValueError(f"llama.cpp makes no context of {longest:,} tokens for {file.name}")
        weakref.finalize(self, llama.llama_free, self._context)  # which comes before the model's
        if llama.llama_n_ctx(self._context) < longest or llama.llama_n_ubatch(self._context) < longest:
            raise ValueError(f"this build of {PACKAGE} lays its parameters out in another way")
        threads = usable_threads()
        llama.llama_set_n_threads(self._context, threads, threads)
        self._vocabulary = llama.llama_vocab_n_tokens(llama.llama_model_get_vocab(model))
        self._longest = longest

    def forward(self, input_ids: Tensor) -> Any:
        llama, ids = _llama(), input_ids.flatten().tolist()
        if len(ids) > self._longest:
            raise ValueError(f"a text of {len(ids):,} tokens; there is room for {self._longest:,}")
        llama.llama_memory_clear(llama.llama_get_memory(self._context), True)
        batch = llama.llama_batch_init(len(ids), 0, 1)
        try:
            batch.n_tokens = len(ids)
            for place, token in enumerate(ids):
                batch.token[place], batch.pos[place], batch.logits[place] = token, place, 1
                batch.n_seq_id[place], batch.seq_id[place][0] = 1, 0
            if status := llama.llama_decode(self._context, batch):
                raise ValueError(f"llama.cpp ended with status {status}")
            at = llama.llama_get_logits(self._context)
            size = len(ids) * self._vocabulary * ctypes.sizeof(ctypes.c_float)
            raw = bytearray(ctypes.string_at(at, size))
        finally:
            llama.llama_batch_free(batch)
        logits = torch.frombuffer(raw, dtype=torch.float32).view(1, len(ids), self._vocabulary)
        return SimpleNamespace(logits=logits)
