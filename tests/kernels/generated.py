"""What C++ tests include: calls for every format, of rows that the table does not have too."""

from __future__ import annotations

from pathlib import Path

from tests.new_rows import CODECS


def write_formats(folder: Path) -> str:
    """Write ``formats.inc``, a call ``check<CODEC>("name");`` a format; nvcc's -I option that finds it."""
    lines = [f'check<{fmt.cuda_codec}>("{name}");\n' for name, fmt in CODECS.items()]
    (folder / "formats.inc").write_text("".join(lines))
    return f"-I{folder}"
