"""The port that the page is served at. Nothing here imports Gradio, which reads the same variable as it is
imported."""

from __future__ import annotations

import os
import socket


def server_port(asked: int | None = None) -> int:
    """``asked``, else ``GRADIO_SERVER_PORT``, or 7860. ``ValueError`` if it is no port, or not free here."""
    text = os.environ.get("GRADIO_SERVER_PORT", "7860") if asked is None else str(asked)
    if not text.isdecimal() or not 0 < int(text) < 1 << 16:
        raise ValueError(f"GRADIO_SERVER_PORT is {text!r}, expected a whole number 1 … 65535")
    address = os.environ.get("GRADIO_SERVER_NAME", "127.0.0.1")
    family = socket.AF_INET6 if ":" in address else socket.AF_INET
    try:
        socket.create_server((address, int(text)), family=family).close()
    except OSError as error:
        why = (error.strerror or str(error)).partition(" (")[0].lower()  # Python repeats the address
        raise ValueError(
            f"port {text} of {address} cannot be used ({why}); choose another by --port or GRADIO_SERVER_PORT"
        ) from error
    return int(text)
