"""The port that the page is served at. Nothing here imports Gradio, which reads the same variable as it is
imported."""

from __future__ import annotations

import os
import socket


def server_port() -> int:
    """``GRADIO_SERVER_PORT``, or 7860. ``ValueError`` if it is no port, or not free here."""
    text = os.environ.get("GRADIO_SERVER_PORT", "7860")
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise ValueError(f"GRADIO_SERVER_PORT is {text!r}, expected a whole number 1 … 65535")
    address = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, int(text)), family=family).close()
    except OSError as error:
        raise ValueError(
            f"port {text} of {address} cannot be used ({error.strerror}); set GRADIO_SERVER_PORT to another"
        ) from error
    return int(text)
