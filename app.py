"""Start the page: ``python app.py``, then http://localhost:7860. Also the entry point of a hosted Space.

``GRADIO_SERVER_PORT`` is another port.
"""

from __future__ import annotations

import os
import sys
import threading

from app.port import server_port

try:
    PORT = server_port()
except ValueError as refused:
    print(f"error: {refused}", file=sys.stderr)
    sys.exit(2)

from explorer.core.backend import gpu_device

os.environ.setdefault("GRADIO_ANALYTICS_ENABLED", "False")


from app import limits
from app.theme import HEAD, make_theme
from app.ui import build
from explorer import gpu
from explorer.bench.quantize import all_builds
from explorer.gpu.runtime import arch_of, compile_all


def main() -> None:
    """Build the page and serve it until interrupted."""
    allowed = limits.current()
    threading.Thread(target=warm_kernels, daemon=True).start()
    page = build().queue(max_size=allowed.queue)
    print(f"Quantization Explorer: http://localhost:{PORT}", flush=True)
    page.launch(**launch_options())


def warm_kernels() -> None:
    """Compile the named schemes' kernels in the background, so that the first visitor does not wait for
    nvcc."""
    device = gpu_device()
    if device is None:
        return
    try:
        for _ in compile_all(all_builds(), [arch_of(device)]):
            pass
    except gpu.KernelError as error:
        print(f"The GPU kernels could not be compiled ahead: {error}", flush=True)


def launch_options() -> dict[str, object]:
    """How the page is served; tests launch it the same way."""
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
        "show_error": True,
        "quiet": True,
    }


if __name__ == "__main__":
    main()
