"""Parts of Gradio that its documentation does not name and the server needs.

Gradio has no other way to give each visitor a share of the queue, to end what nobody listens for, and to drop
what nobody fetches. A version without one of these parts is refused before it serves anybody.
"""

from __future__ import annotations

import inspect
from collections.abc import Iterator
from typing import Any

import gradio as gr
from gradio.queueing import Event, EventQueue, ProcessTime
from gradio.routes import file_upload_statuses

TESTED = "6.31.0"
"""The version that the page was tested with."""
IMPORTS = {
    "gradio.exceptions": {"Error"},
    "gradio.queueing": {"Event", "EventQueue", "ProcessTime", "Queue"},
    "gradio.routes": {"API_PREFIX", "file_upload_statuses", "upload_fn"},
    "gradio.server_messages": {"ProcessCompletedMessage"},
    "gradio.state_holder": {"SessionState", "StateHolder"},
    "gradio.themes.utils": {"fonts"},
    "gradio.utils": {"LRUCache", "error_payload"},
    "gradio": {"route_utils", "routes"},
}
"""Names that modules of the page import from Gradio, beside ``gradio`` itself."""
OF_THE_PAGE = ("_queue", "app", "blocks", "default_config", "fns", "get_api_info", "temp_file_sets")
OF_THE_SERVER = ("get_blocks", "iterators_to_reset", "state_holder")
OF_THE_QUEUE = (
    "ANALYTICS_MAX_EVENTS", "active_jobs", "delete_lock", "event_ids_to_events",
    "event_queue_per_concurrency_id", "get_events", "max_size", "pending_event_ids_session",
    "pending_messages_per_session", "process_events", "process_time_per_fn", "send_message", "stopped",
)  # fmt: skip
OF_A_LINE = ("concurrency_limit", "current_concurrency", "queue", "start_times_per_fn")
OF_A_REQUEST = ("_id", "alive", "concurrency_id", "enqueue_time", "fn", "request", "session_hash")
OF_A_FUNCTION = ("api_name", "api_visibility", "concurrency_id", "fn", "inputs")
OF_UPLOADS = ("_signals", "_statuses")
ARGUMENTS = {
    "process_api": ("block_fn", "event_data", "event_id", "inputs", "session_hash"),
    "preprocess_data": ("block_fn", "explicit_call", "inputs", "state"),
}
"""Of methods of a page that ``CheckedBlocks`` extends."""


def check(page: Any) -> None:
    """``ValueError`` that names what the installed Gradio lacks for ``page``, which is built."""
    if lacking := sorted(_lacking(page)):
        raise ValueError(
            f"Gradio {gr.__version__} lacks {', '.join(lacking)}, which the page's server needs; "
            f"the page was tested with gradio=={TESTED}"
        )


def _lacking(page: Any) -> Iterator[str]:
    function = next(iter(page.fns.values()))
    request: Any = None
    parts: list[tuple[str, Any, tuple[str, ...]]] = [
        ("Blocks", page, OF_THE_PAGE),
        ("App", page.app, OF_THE_SERVER),
        ("Queue", page._queue, OF_THE_QUEUE),
        ("EventQueue", EventQueue("", 1), OF_A_LINE),
        ("Event", Event(None, function, request, None), OF_A_REQUEST),
        ("ProcessTime", ProcessTime(), ("avg_time",)),
        ("BlockFunction", function, OF_A_FUNCTION),
        ("file_upload_statuses", file_upload_statuses, OF_UPLOADS),
        ("HTML", gr.HTML(render=False), ("server_fns",)),
    ]
    for what, part, names in parts:
        yield from (f"{what}.{name}" for name in names if not hasattr(part, name))
    for method, names in ARGUMENTS.items():
        known = inspect.signature(getattr(gr.Blocks, method)).parameters
        yield from (f"{name} of Blocks.{method}" for name in names if name not in known)
