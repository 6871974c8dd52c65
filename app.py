"""Start the page: ``python app.py``, then http://localhost:7860. Also the entry point of a hosted Space.

``GRADIO_SERVER_PORT`` sets another port. ``EXPLORER_HOSTED`` (1 or 0) declares it public or local.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from typing import Any

from app.serving.port import server_port

try:
    PORT = server_port()
except ValueError as refused:
    print(f"error: {refused}", file=sys.stderr)
    sys.exit(2)

from explorer.core.backend import gpu_device

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


from starlette.middleware import Middleware
from starlette.middleware.gzip import GZipMiddleware
from starlette.middleware.trustedhost import TrustedHostMiddleware

from app import limits
from app.serving import addresses, uploads, waiting
from app.serving.guard import Guard
from app.serving.headers import ScriptHashes, SecurityHeaders
from app.serving.measure import ROUTES
from app.serving.memory import return_forever, return_large_blocks
from app.serving.visitors import HostedWatch
from app.state.controls import DEFAULT_SCHEME
from app.theme import HEAD, make_theme
from app.ui import build
from explorer import gpu
from explorer.core.builds import all_builds
from explorer.gpu.runtime import arch_of, compile_all
from explorer.recordings.files import leave_out_damaged
from explorer.schemes import Scheme


def main() -> None:
    """Build the page and serve it until interrupted."""
    logging.basicConfig(level=logging.INFO, format="%(asctime)s %(name)s %(message)s")
    for chatty in ("httpx", "httpcore"):
        logging.getLogger(chatty).setLevel(logging.WARNING)
    allowed = limits.current()
    logging.getLogger("explorer").info(
        "limits: %s (%s)", "hosted" if allowed.hosted else "local", limits.why()
    )
    leave_out_damaged(lambda words: print(f"left out: {words}", file=sys.stderr, flush=True))
    return_large_blocks()
    return_forever()
    uploads.make_store()
    uploads.sweep_forever()
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(0))  # so that the store is removed
    threading.Thread(target=warm_kernels, daemon=True).start()
    page = build().queue(**queue_options())
    print(f"Quantization Explorer: http://localhost:{PORT}", flush=True)
    page.launch(**launch_options())


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


def launch_options() -> dict[str, object]:
    """Launch options of the page; tests launch it the same way."""
    return {
        "theme": make_theme(),
        "head": HEAD,
        "server_name": os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1"),
        "server_port": PORT,
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
            "routes": [*ROUTES, addresses.FILE],
            "lifespan": waiting.watched,
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
        Middleware(HostedWatch),
        Middleware(SecurityHeaders),
        Middleware(Guard),
        Middleware(GZipMiddleware, minimum_size=2000, compresslevel=5),
        Middleware(ScriptHashes),
    ]


if __name__ == "__main__":
    main()
