"""Words for refusals: errors that an input explains, without what is of use only outside of the page."""

from __future__ import annotations

import re

import torch

from app import limits
from app.state.query import page_words
from explorer import gpu
from explorer.progress import StoppedError

_REFUSED = (ValueError, StoppedError, OSError, ImportError, MemoryError, RuntimeError)


def _message(error: Exception) -> str:
    """The words for a refusal; an error that no input explains is raised again."""
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and "memory" in str(error).lower()):
        torch.cuda.empty_cache()
        return "not enough memory for this tensor; choose a smaller one"
    if isinstance(error, RuntimeError) and not isinstance(error, gpu.KernelError):
        raise error
    return words_of(error)


def refusal_words(error: Exception) -> str | None:
    """The words for a refusal; None for an error that no input explains."""
    if not isinstance(error, _REFUSED):
        return None
    try:
        return _message(error)
    except RuntimeError:
        return None


def words_of(error: Exception) -> str:
    """The words for an error of a file or a value; on a public page without the machine's folders."""
    if not isinstance(error, OSError) or not limits.current().hosted:
        return page_words(str(error))
    return error.strerror or page_words(_FOLDERS.sub("", str(error)))


_FOLDERS = re.compile(r"(?:[A-Za-z]:)?[/\\](?:[^/\\:'\"\n]+[/\\])+")
