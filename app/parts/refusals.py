"""Words for refusals: errors that an input explains, without what is of use only outside of the page."""

from __future__ import annotations

import re
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import gradio as gr
import torch

from app import limits
from app.serving.cores import charged, queued
from app.serving.measure import measured
from app.serving.work import check_of_this_run
from app.state.query import page_words
from explorer import gpu
from explorer.progress import StoppedError, stoppable

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
    if not isinstance(error, _REFUSED) or _of_a_figure(error):
        return None
    try:
        return _message(error)
    except RuntimeError:
        return None


def _of_a_figure(error: Exception) -> bool:
    """True for what plotly raises: it is given values of the page's own, so that is a defect."""
    raised_in = [frame.f_globals.get("__name__", "") for frame, _ in traceback.walk_tb(error.__traceback__)]
    return any(name.startswith(("plotly.", "_plotly_utils.")) for name in raised_in[-1:])


@contextmanager
def for_program(name: str) -> Iterator[None]:
    """Inside, the endpoint ``name`` is answered. A refusal is an API error with its words: programs have no
    screen to keep."""
    with measured(f"api.{name}") as outcome:
        try:
            with charged(), queued(), stoppable(check_of_this_run()):
                yield
        except (ValueError, OSError, StoppedError) as error:
            if _of_a_figure(error):
                raise
            outcome.how = "refused"
            said = words_of(error) if isinstance(error, OSError) else one_line(str(error))
            raise gr.Error(said, print_exception=False) from error


def words_of(error: Exception) -> str:
    """The words for an error of a file or a value; on a public page without the machine's folders."""
    if not isinstance(error, OSError) or not limits.current().hosted:
        return one_line(page_words(str(error)))
    return error.strerror or one_line(page_words(_FOLDERS.sub("", str(error))))


def one_line(message: str) -> str:
    """A message with blanks for its line breaks."""
    return " ".join(message.split())


_FOLDERS = re.compile(r"(?:[A-Za-z]:)?[/\\](?:[^/\\:'\"\n]+[/\\])+")
