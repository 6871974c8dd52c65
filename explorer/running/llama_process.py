"""llama.cpp in a process of its own, which a damaged GGUF file may end or keep busy.

This file is run by itself (``python -P llama_process.py``), with the package xllamacpp and the standard
library. Each line of standard input is JSON: first ``{"file", "threads", "settings"}``, then
``[id, request]`` for each text, and ``[id, null]`` to end one after its current token. Each line of standard
output is ``[id, kind, value]``: kind "ready" (id 0; the instructions that llama.cpp uses), "part", "error" or
"end". The end of standard input ends the process.
"""

from __future__ import annotations

import json
import os
import sys
import threading
from contextlib import suppress
from typing import Any


def main() -> None:
    """Answer the requests on standard input until it ends."""
    out, printing, ended = os.fdopen(os.dup(1), "w"), threading.Lock(), set[int]()
    os.dup2(2, 1)  # what llama.cpp prints is no answer

    def say(number: int, kind: str, value: Any = None) -> None:
        with printing:
            print(json.dumps([number, kind, value]), file=out, flush=True)

    def write(number: int, asked: Any) -> None:
        def take(part: str | dict[str, Any]) -> bool:
            say(number, "part", json.loads(part) if isinstance(part, str) else part)
            return number in ended

        try:
            server.handle_completions(json.dumps(asked), take)
        except Exception as error:  # raised again where the parts are read
            say(number, "error", str(error))
        say(number, "end")

    try:
        server, instructions = _server(**json.loads(sys.stdin.readline()))
    except RuntimeError as error:
        say(0, "error", str(error))
        return
    say(0, "ready", instructions)
    for line in sys.stdin:
        number, asked = json.loads(line)
        if asked is None:
            ended.add(number)
        else:  # llama.cpp calls back from the thread that sent the request
            threading.Thread(target=write, args=(number, asked), daemon=True).start()
    os._exit(0)  # texts that are being written end here


def _server(file: str, threads: int, settings: dict[str, Any]) -> tuple[Any, str]:
    """llama.cpp with the model in ``file``, and the instructions that it was built for and found.
    ``RuntimeError`` if it cannot open the file."""
    import secrets

    import xllamacpp

    with suppress(ImportError):  # on Windows, which leaves no such file
        import resource

        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
    asked = xllamacpp.CommonParams()
    asked.model.path = file
    asked.cpuparams.n_threads = asked.cpuparams_batch.n_threads = threads
    asked.api_keys = [secrets.token_hex()]  # it also listens at a local address
    for name, value in settings.items():
        setattr(asked, name, value)
    server = xllamacpp.Server(asked)
    server.handle_completions(json.dumps({"prompt": [0], "n_predict": 1}), lambda part: False)  # not measured
    return server, xllamacpp.get_system_info()


if __name__ == "__main__":
    main()
