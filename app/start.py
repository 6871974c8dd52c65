"""Serving the page: limits, store, middleware, and the address that is printed.

``explorer.cli.page`` imports this module last, because Gradio reads its settings as it is imported.
"""

from __future__ import annotations

import gc
import logging
import os
import signal
import sys
import tempfile
import threading
import webbrowser
from pathlib import Path
from typing import Any, NoReturn

from fastapi.exceptions import RequestValidationError
from starlette.middleware import Middleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from app import limits
from app.learn import picture
from app.sections import answer
from app.serving import addresses, connections, functions, internals, opened, uploads, waiting
from app.serving.guard import Guard, refuse_unfit
from app.serving.headers import MadeOnce, SecurityHeaders
from app.serving.measure import ROUTES
from app.serving.memory import return_forever, return_large_blocks
from app.state.controls import DEFAULT_SCHEME
from app.state.estimates import estimated
from app.state.record import Record, first_of_file, next_record
from app.theme import LATE_HEAD, make_theme
from app.ui import build
from explorer import gpu
from explorer.cli.app import ENDING
from explorer.cli.output import hide_words_of_torchao
from explorer.core.backend import gpu_device
from explorer.core.builds import all_builds
from explorer.gpu.runtime import arch_of, compile_all
from explorer.recordings.files import leave_out_damaged
from explorer.schemes import Scheme

COLLECTED_AFTER = 10_000, 20, 20
"""Thresholds of Python's garbage collector. With its own, 700, 10 and 10, opening a file of 100,000 tensors
collects everything five times, for .2 to .36 s in which nobody else is answered."""


def serve(port: int, file: Path | None = None, open_browser: bool = False) -> None:
    """Build the page and serve it on ``port`` until interrupted. ``file`` is a tensor file that the printed
    address opens; ``open_browser`` opens that address in the browser of this machine.

    ``ValueError`` before anything is served for a file that holds no tensor or may not be opened here, and if
    a share link that was asked for could not be made.
    """
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    for chatty in ("httpx", "httpcore", "httpx2", "httpcore2"):  # a line for each request to the Hub
        logging.getLogger(chatty).setLevel(logging.WARNING)
    hide_words_of_torchao()
    allowed = limits.current()
    logging.getLogger("explorer").info(
        "limits: %s (%s)", "hosted" if allowed.hosted else "local", limits.why()
    )
    leave_out_damaged(lambda words: print(f"left out: {words}", file=sys.stderr, flush=True))
    return_large_blocks()
    return_forever()
    tempfile.tempdir = str(uploads.make_store())  # what leads to a result is counted and removed with it
    query = _query_of(file)
    uploads.sweep_forever()
    threading.Thread(target=warm_kernels, daemon=True).start()
    threading.Thread(target=answer.prepare, daemon=True).start()
    page = build().queue(**queue_options())
    internals.check(page)
    gc.freeze()
    gc.set_threshold(*COLLECTED_AFTER)
    page.launch(**launch_options(port), prevent_thread_lock=True)
    connections.watch(page.server)
    connections.limit_log()
    _announce(page, f"http://localhost:{port}{query}", open_browser)
    wait(page)


def wait(page: Any) -> NoReturn:
    """Wait until the served ``page`` is interrupted, and end this process: with code 0, or with 1 and the
    reason in the log where the page failed."""
    try:
        page.block_thread()
        code = 0
    except (KeyboardInterrupt, SystemExit):
        code = 0
    except Exception:
        logging.getLogger("explorer").exception("the page failed")
        code = 1
    connections.stop(page.server)
    end(code)


def end(code: int = 0) -> NoReturn:
    """End this process with ``code``; the store is removed, and no signal ends that. Threads may still
    compute for visitors, and torch aborts a program whose interpreter ends under them: it does not end, the
    process does."""
    for number in {signal.SIGINT, *ENDING}:
        signal.signal(number, signal.SIG_IGN)
    sys.setswitchinterval(1e-5)  # to remove a file asks for Python's lock several times
    uploads.remove_store()
    for stream in (sys.stdout, sys.stderr):
        stream.flush()
    os._exit(code)


def _query_of(file: Path | None) -> str:
    """The query of the address that opens ``file``; "" for None."""
    if file is None:
        return ""
    name = opened.register(file)
    path = str(opened.path_of(name))
    if not _can_be_sampled(path):
        next_record(Record(), {"do": "file"}, path)  # refuses what the page could not show
    return f"/?{opened.query_of(name)}"


def _can_be_sampled(path: str) -> bool:
    """True of a file whose tensor is large and begins to be shown at once: the page reads the rest of it, and
    says there what is wrong with it."""
    try:
        return estimated(first_of_file(Record.fresh(), path)) is not None
    except ValueError:
        return False


def _announce(page: Any, address: str, open_browser: bool) -> None:
    """Print where the page is, and open it in a browser if that is wanted."""
    if os.environ.get("GRADIO_SHARE", "").lower() == "true" and not page.share_url:
        page.close()
        raise ValueError(
            "no share link could be made (the lines above say why); without --share the page is local"
        )
    print(f"Quantization Explorer: {address}", flush=True)
    if open_browser and not webbrowser.open(address):
        print("no browser was found here: open this address in one", file=sys.stderr, flush=True)


def warm_kernels() -> None:
    """Compile what the first view needs in the background, so that the first visitor does not wait for nvcc;
    others' kernels are compiled when they are asked for, or beforehand by ``explorer compile``."""
    device = gpu_device()
    if device is None:
        return
    try:
        for _ in compile_all(all_builds([Scheme.parse(DEFAULT_SCHEME)]), [arch_of(device)]):
            pass
    except gpu.KernelError as error:
        print(f"The GPU kernels could not be compiled ahead: {error}", flush=True)


def queue_options() -> dict[str, Any]:
    """Configure the queue: the limit on waiting requests, and queueing for all. Unqueued endpoints
    (/run/…) would have neither a share nor a time limit."""
    return {"max_size": limits.current().queue, "api_open": False}


def launch_options(port: int | None = None) -> dict[str, object]:
    """Launch options of the page on ``port`` (None: one that is free); tests launch it the same way."""
    return {
        "theme": make_theme(),
        "head": LATE_HEAD,
        "server_name": os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
        "server_port": port,
        "ssr_mode": False,
        "run_history": False,
        "enable_monitoring": False,
        "max_file_size": limits.current().upload_bytes,
        "footer_links": ["api"],
        "strict_cors": True,
        "show_error": False,
        "quiet": True,
        "state_session_capacity": limits.current().sessions,
        "app_kwargs": {
            "middleware": middleware(),
            "routes": [*ROUTES, *functions.ROUTES, addresses.SCRIPTS, addresses.FILE, picture.ROUTE],
            "lifespan": waiting.watched,
            "exception_handlers": {RequestValidationError: refuse_unfit},
        },
    }


def middleware() -> list[Middleware]:
    """Middleware of every request, outermost first."""
    name = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")
    own = ["localhost", "127.0.0.1", "::1", "[::1]", name]
    return [
        # A page that answers under any name can be read by a site that lets its own name point here. First,
        # so that a refused request does not count as one that came through a proxy.
        *([] if limits.current().hosted else [Middleware(TrustedHostMiddleware, allowed_hosts=own)]),
        Middleware(SecurityHeaders),
        Middleware(Guard),
        Middleware(MadeOnce),
    ]
