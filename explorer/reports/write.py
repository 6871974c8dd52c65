"""A report's files: HTML, PDF, figures as SVG, PDF and PNG, tables as CSV and LaTeX."""

from __future__ import annotations

import base64
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import unquote_to_bytes

from explorer.export.files import replacing
from explorer.progress import Progress, checkpoint
from explorer.reports.content import Content
from explorer.reports.page import as_html, cell, tables_of

Page = Any
"""playwright's, which is not needed for the HTML file."""
SCALE = 2
"""Pixels of a PNG for one of the figure's."""
WIDTH = 860


def write(
    content: Content,
    out: Path | None,
    pdf: Path | None = None,
    folder: Path | None = None,
    progress: Progress | None = None,
) -> list[Path]:
    """Write the report to ``out`` and, where they are asked for, its print to ``pdf`` and its figures and
    tables to ``folder``; the files that were written. Print and figures need the extra ``report`` and
    Chromium; ``ValueError`` where they are missing, before anything is written."""
    if pdf or folder:
        check_printer()
    figures = sum(len(part.figures) for part in content.parts)
    total = 1 + (2 if pdf or folder else 0) + (figures if folder else 0)
    done = 0

    def step() -> None:
        nonlocal done
        checkpoint()
        done += 1
        if progress is not None:
            progress(done, total)

    text = as_html(content)
    written = [_replace(out, text.encode())] if out else []
    step()
    if folder:
        folder.mkdir(parents=True, exist_ok=True)
        written += write_tables(content, folder)
    if pdf or folder:
        with _opened(text) as page:
            step()
            if pdf:
                page.evaluate("document.querySelectorAll('details').forEach(d => { d.open = true; })")
                written.append(_replace(pdf, page.pdf(prefer_css_page_size=True, print_background=True)))
            step()
            if folder:
                written += _write_figures(content, page, folder, step)
    return written


def check_printer() -> None:
    """``ValueError`` with installation instructions if printing is not available."""
    from explorer.browser import chromium_path, playwright_api

    playwright_api()
    chromium_path()


def _replace(path: Path, data: bytes) -> Path:
    """Whole or not at all; the path."""
    with replacing(path) as partial:
        partial.write_bytes(data)
    return path


def write_tables(content: Content, folder: Path) -> Iterator[Path]:
    """Every table as CSV and as LaTeX (booktabs) in ``folder``; the files, as they are written."""
    import pandas

    for table in tables_of(content):
        frame = pandas.DataFrame([list(row) for row in table.rows], columns=list(table.columns))
        yield _replace(folder / f"{table.name}.csv", frame.to_csv(index=False).encode())
        # Numbers in the six digits of the HTML: a precision would count decimals, and lose small ones.
        latex = frame.astype(object).map(cell).style.hide(axis="index").format(escape="latex")
        latex = latex.format_index(escape="latex", axis=1)
        yield _replace(folder / f"{table.name}.tex", latex.to_latex(hrules=True).encode())


@contextmanager
def _opened(text: str) -> Iterator[Page]:
    """The report in a headless Chromium, its figures drawn."""
    from explorer.browser import chromium

    with chromium() as browser:
        context = browser.new_context(viewport={"width": WIDTH, "height": 1000})
        page = context.new_page()
        page.set_content(text)
        page.evaluate("async () => { await document.fonts.ready; await window.drawn; }")
        yield page
        context.close()


def _write_figures(content: Content, page: Page, folder: Path, step: Callable[[], None]) -> Iterator[Path]:
    for part in content.parts:
        for name, figure, _ in part.figures:
            height = int(figure.layout.height or 400)
            for kind, scale in (("svg", 1), ("png", SCALE)):
                image = page.evaluate(
                    "([id, format, width, height, scale]) =>"
                    " Plotly.toImage(id, { format, width, height, scale })",
                    [f"figure-{name}", kind, WIDTH, height, scale],
                )
                yield _replace(folder / f"{name}.{kind}", _data(image))
            alone = page.context.new_page()
            svg = (folder / f"{name}.svg").read_text(encoding="utf-8")
            alone.set_content(f'<body style="margin:0">{svg}</body>')
            printed = alone.pdf(width=f"{WIDTH}px", height=f"{height + 1}px", print_background=True)
            yield _replace(folder / f"{name}.pdf", printed)
            alone.close()
            step()


def _data(url: str) -> bytes:
    """The bytes of a data URL."""
    head, _, body = url.partition(",")
    return base64.b64decode(body) if head.endswith("base64") else unquote_to_bytes(body)
