"""The page's own scripts without a page, run by the Node.js that Playwright brings."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Iterable
from typing import Any

from playwright._impl._driver import compute_driver_executable

from explorer.paths import ASSETS


def run_scripts(names: Iterable[str], function: str, argument: Any) -> Any:
    """What a JavaScript ``function`` returns for ``argument``, after scripts of ``assets``. NaN, infinities
    and minus zero come as texts that ``float`` reads."""
    scripts = "\n".join((ASSETS / f"{name}.js").read_text(encoding="utf-8") for name in names)
    program = f"""
    globalThis.window = globalThis;
    window.explorer = {{}};
    {scripts}
    const plain = (_, value) => Object.is(value, -0) ? '-0'
      : typeof value === 'number' && !Number.isFinite(value) ? String(value) : value;
    process.stdout.write(JSON.stringify(({function})({json.dumps(argument)}), plain));
    """
    node = compute_driver_executable()[0]
    done = subprocess.run([node, "-"], input=program, capture_output=True, text=True)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)
