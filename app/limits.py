"""Limits on a visitor's requests, and the messages when they are exceeded."""

from __future__ import annotations

import dataclasses
import html
import logging
import os
import re
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass

import gradio as gr

from explorer.sources import source_limits as sources
from explorer.sources.base import TensorInfo
from explorer.sources.source_limits import SourceLimits
from explorer.words import bytes_


@dataclass(frozen=True)
class Limits:
    """Bounds on what one visitor may ask for.

    hosted: True if the page is public.
    elements: of one tensor; of a larger one the first rows are read.
    side: rows, and columns, of the matrix that a tensor is taken as: scales are stored for each.
    upload_bytes: of one uploaded file.
    store_bytes: of all uploads and results that are kept.
    uploads: of one visitor (address) at the same time.
    request_bytes: of one request that is no upload.
    bodies: requests of one visitor (address) with a body that has not arrived yet.
    streams: open streams of events of one visitor (address).
    connections: of one visitor (address).
    queue: requests that may wait.
    share: requests of one visitor (address) that may wait or run.
    answer_bytes: of the answer of a server function.
    views: server functions of one visitor (address) that run at once; ``functions.AT_ONCE`` of all.
    wait_seconds: until a request's work begins.
    sessions: open pages that are remembered.
    visit_bytes: of what is kept for all open pages.
    keep_seconds: how long uploads and results are kept.
    sources: bounds on files, folders and the Hub.
    listed: tensors in one answer to a program.
    product_elements: of each matrix of a timed GEMM.
    product_terms: M·N·K of a GEMM that is timed on the CPU.
    run_seconds: of one run.
    model_weights: of a model that may be run on text.
    text_tokens: that a model writes in one run.
    prompt_characters: of the prompt that it continues.
    solved_columns: input channels of a layer for methods that factor a matrix of them.
    recording_bytes: of one recording that a visitor opens, which is parsed whole.
    recordings: that are open at once in one visitor's page.
    """

    hosted: bool
    elements: int
    side: int
    upload_bytes: int
    store_bytes: int
    uploads: int
    request_bytes: int
    bodies: int
    streams: int
    connections: int
    queue: int
    share: int
    answer_bytes: int
    views: int
    wait_seconds: float
    sessions: int
    visit_bytes: int
    keep_seconds: int
    sources: SourceLimits
    listed: int
    product_elements: int
    product_terms: int
    run_seconds: float
    model_weights: int
    text_tokens: int
    prompt_characters: int
    solved_columns: int
    recording_bytes: int
    recordings: int

    def most_of(self, info: TensorInfo) -> int:
        """Elements of a tensor that may be read: so few that its matrix has no longer side than ``side``."""
        columns = info.matrix_shape[1]
        return min(self.elements, self.side * columns) if columns <= self.side else self.side


LOCAL = Limits(
    hosted=False,
    elements=1 << 28,
    side=1 << 28,
    upload_bytes=16 << 30,
    store_bytes=256 << 30,
    uploads=16,
    request_bytes=16 << 20,
    bodies=64,
    streams=1024,
    connections=2048,
    queue=64,
    share=64,
    answer_bytes=64 << 20,
    views=12,
    wait_seconds=3600,
    sessions=1000,
    visit_bytes=1 << 30,
    keep_seconds=86400,
    sources=sources.LOCAL,
    listed=500_000,
    product_elements=1 << 28,
    product_terms=1 << 40,
    run_seconds=300,
    model_weights=16 << 30,
    text_tokens=512,
    prompt_characters=20_000,
    solved_columns=1 << 14,
    recording_bytes=64 << 20,
    recordings=8,
)
RUN_MODELS = "EXPLORER_RUN_MODELS"


def hosted_sources() -> SourceLimits:
    """``source_limits.HOSTED`` with the models that the environment names: Hub ids, or * for all."""
    named = os.environ.get(RUN_MODELS, "").replace(",", " ").split()
    if wrong := [name for name in named if name != "*" and not re.fullmatch(r"[\w.-]+/[\w.-]+", name)]:
        raise ValueError(f"{RUN_MODELS} has {wrong[0]!r}: expected Hub ids (owner/name), or * for all models")
    runs = None if "*" in named else tuple(named) or sources.HOSTED.runs
    return dataclasses.replace(sources.HOSTED, runs=runs)


HOSTED = Limits(
    hosted=True,
    elements=1 << 24,
    side=1 << 18,
    upload_bytes=256 << 20,
    store_bytes=8 << 30,
    uploads=4,
    request_bytes=1 << 19,
    bodies=32,
    streams=256,
    connections=512,
    queue=64,
    share=16,
    answer_bytes=8 << 20,
    views=4,
    wait_seconds=60,
    sessions=256,
    visit_bytes=256 << 20,
    keep_seconds=3600,
    sources=hosted_sources(),
    listed=5_000,
    product_elements=1 << 26,
    product_terms=1 << 34,
    run_seconds=30,
    model_weights=400_000_000,
    text_tokens=64,
    prompt_characters=2_000,
    solved_columns=1 << 12,
    recording_bytes=2 << 20,
    recordings=2,
)


def check_answer(size: int) -> None:
    """``ValueError`` for an answer of more bytes than ``Limits.answer_bytes``; the log has a line."""
    if size > (most := current().answer_bytes):
        _LOG.warning("an answer of %d bytes is refused", size)
        raise ValueError(f"what is shown here has {bytes_(size)}; it may have at most {bytes_(most)}")


_LOOPBACK = ("127.0.0.1", "localhost", "::1")
_LOG = logging.getLogger("explorer")
_found: list[str] = []
"""Reason why a running page became hosted: at most one entry."""


def current() -> Limits:
    """``LOCAL`` for a page that only this machine can reach, ``HOSTED`` for any other."""
    return HOSTED if _decided()[0] else LOCAL


sources.bound_process(lambda: current().sources)


def why() -> str:
    """Return the reason for ``LOCAL`` or ``HOSTED``, in words."""
    return _decided()[1]


def found_hosted(reason: str) -> None:
    """From now on the page counts as hosted, unless ``EXPLORER_HOSTED`` says otherwise."""
    if not _found and not current().hosted:
        _found.append(reason)
        _LOG.warning("limits: %s (%s)", "hosted" if current().hosted else "local", why())
        if current().hosted:
            _LOG.warning(
                "limits: queue and kinds of files are still a local page's: restart with EXPLORER_HOSTED=1"
            )


def _decided() -> tuple[bool, str]:
    """Return whether the page is hosted, and the reason."""
    said = os.environ.get("EXPLORER_HOSTED", "")
    if said in ("0", "1"):
        return said == "1", f"EXPLORER_HOSTED={said}"
    if os.environ.get("SPACE_ID"):
        return True, "SPACE_ID is set: a Space"
    if os.environ.get("GRADIO_SHARE", "").lower() == "true":
        return True, "GRADIO_SHARE is set: a share link"
    address = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")
    if address not in _LOOPBACK:
        return True, f"GRADIO_SERVER_NAME={address} can be reached from other machines"
    if _found:
        return True, _found[0]
    return False, f"{address} can be reached from this machine only"


_notices: ContextVar[list[str] | None] = ContextVar("notices", default=None)
"""Words for the visitor whose request is answered now, where its answer carries them."""


@contextmanager
def gathered() -> Iterator[list[str]]:
    """Inside, what is said to the visitor is put into the list, which the answer carries."""
    said: list[str] = []
    token = _notices.set(said)
    try:
        yield said
    finally:
        _notices.reset(token)


def notify(message: str) -> None:
    """Show ``message`` to the visitor for eight seconds; the view is unchanged. It is plain text: content
    from a file or a link is not interpreted as HTML."""
    if (said := _notices.get()) is not None:
        said.append(message)
        return
    gr.Warning(html.escape(message, quote=False), duration=8)
