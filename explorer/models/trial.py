"""A first look at a stranger's model: a process of its own reads its configuration, builds its network
without weights, and reads its tokenizer, within bounds on memory and processor time.

transformers makes lists and runs loops as a configuration's numbers ask for, and a tokenizer is parsed with
Python's lock held: in the process of a page, nothing would end either.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import threading
import time
from collections import OrderedDict
from contextlib import suppress
from pathlib import Path

from explorer.progress import checkpoint, held
from explorer.sources.base import SourceError

SECONDS, TOKENIZER_SECONDS = 8, 1.5
"""Processor time for all, once transformers is imported; and for the tokenizer, which holds Python's lock for
as long when it is read again."""
BYTES = 1 << 30
"""Memory beyond what the imports take."""
MOST_MODULES = 20_000
"""Modules of a network that is run; layers times experts, blocks or labels of its config."""
_WAIT_SECONDS = 60
"""Longest wait, on a busy machine as well."""
_REMEMBERED = 1000
_ONE = threading.Lock()
"""Held by the one who tries a model out: each takes memory."""
_ANSWERS: OrderedDict[str, str] = OrderedDict()
"""By folder, whose name has the commit: why a model is refused; empty if it is not."""


def try_out(folder: Path, origin: str) -> None:
    """``SourceError`` if reading the model in ``folder`` takes more than the bounds; remembered. A model that
    fails in another way is not refused here."""
    with held(_ONE):
        if (why := _ANSWERS.get(str(folder))) is None:
            why = _ANSWERS[str(folder)] = _tried(folder, origin)
        while len(_ANSWERS) > _REMEMBERED:
            _ANSWERS.popitem(last=False)
    if why:
        raise SourceError(f"{origin}: {why}")


def _tried(folder: Path, origin: str) -> str:
    paths = os.pathsep.join(filter(None, (str(Path(__file__).parents[2]), os.environ.get("PYTHONPATH", ""))))
    environment = os.environ | {"HF_HUB_OFFLINE": "1", "PYTHONPATH": paths}
    command = [sys.executable, "-P", "-m", "explorer.models.trial", str(folder)]
    end = time.monotonic() + _WAIT_SECONDS
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, stdin=subprocess.DEVNULL, env=environment
    ) as child:
        try:
            while child.poll() is None:
                checkpoint()
                if time.monotonic() > end:
                    raise SourceError(
                        f"{origin}: its config and tokenizer were not read in time; try again later"
                    )
                with suppress(subprocess.TimeoutExpired):
                    child.wait(0.1)
        finally:
            child.kill()
        assert child.stdout is not None
        printed = child.stdout.read()
    try:
        seconds = float(json.loads(printed))
    except ValueError:
        return f"reading its config and tokenizer takes more than {SECONDS} s or {BYTES >> 30} GiB"
    if seconds > TOKENIZER_SECONDS:
        return f"reading its tokenizer takes {seconds:.1f} s, more than {TOKENIZER_SECONDS}"
    return ""


def _main(folder: str) -> None:
    """Print the seconds that the tokenizer takes, 0 for a model that fails; end without a word where the
    bounds do."""
    import torch
    from transformers import AutoConfig, AutoModel, AutoTokenizer

    from explorer.models.skeleton import few_modules

    _bound()
    try:
        config = AutoConfig.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        with torch.device("meta"), few_modules(folder, MOST_MODULES):
            AutoModel.from_config(config, trust_remote_code=False)
        began = time.process_time()
        AutoTokenizer.from_pretrained(folder, local_files_only=True, trust_remote_code=False)
        seconds = time.process_time() - began
    except MemoryError:
        os._exit(1)
    except Exception:  # who loads it says why
        seconds = 0.0
    print(json.dumps(seconds), flush=True)
    os._exit(0)


def _bound() -> None:
    """Bound this process from here on."""
    try:
        import resource
    except ImportError:  # Windows has no such bounds
        return
    bounds = {resource.RLIMIT_CPU: int(time.process_time()) + 1 + SECONDS, resource.RLIMIT_CORE: 0}
    if (about := Path("/proc/self/status")).is_file():  # of Linux
        status = dict(line.split(":", 1) for line in about.read_text().splitlines())
        bounds[resource.RLIMIT_DATA] = int(status["VmData"].split()[0]) * 1024 + BYTES
    for which, most in bounds.items():
        resource.setrlimit(which, (most, most))


if __name__ == "__main__":
    _main(sys.argv[1])
