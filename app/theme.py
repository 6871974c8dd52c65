"""Theme, fonts, style sheet and script of the page, and how a plotly figure is handed to it."""

from __future__ import annotations

import hashlib

import gradio as gr
import plotly.graph_objects as go
from gradio.themes.utils import fonts

from app import glossary, scheme_groups
from explorer.figures.paper import faces
from explorer.figures.style import made_by
from explorer.paths import ASSETS, PLOTLY


def _assets(suffix: str, first: str) -> str:
    """All files of assets/ with a suffix, ``first`` before the others."""
    paths = sorted(ASSETS.glob(f"*.{suffix}"), key=lambda path: (path.name != first, path.name))
    return "\n".join(path.read_text(encoding="utf-8") for path in paths)


def _font_address(file: str) -> str:
    return f"gradio_api/file={ASSETS.as_posix()}/fonts/{file}"


SCRIPT = _assets("js", "explorer.js")
"""The page's scripts, which ``app.serving.addresses`` answers with."""
SCRIPT_ADDRESS = f"page.js?v={hashlib.sha256(SCRIPT.encode()).hexdigest()[:16]}"
"""Their address: another one whenever they change, so that browsers keep them."""

# In the head, as Gradio puts what it takes as css= below a class of its own, where rules for <html> are lost.
HEAD = (
    glossary.head() + scheme_groups.head() + f'<style id="page-style">{_assets("css", "style.css")}</style>'
    f'<link id="plotly" rel="preload" as="script" href="gradio_api/file={PLOTLY.as_posix()}">'
    f'<meta name="generator" content="{made_by()}">'
    f"<style>{faces('Inter Paper', _font_address)}</style>"
    f'<script src="{SCRIPT_ADDRESS}"></script>'
)
"""Style sheet and scripts, which ``app.serving.headers`` puts into the HTML: they run before Gradio's."""
LATE_HEAD = '<script>document.head.append(document.getElementById("page-style"))</script>'
"""What Gradio's script puts into the head after its own style sheets: of two rules of equal specificity, the
page's wins."""

ACCENT = gr.themes.Color(
    "#eff8ff", "#d9edfb", "#b3daf6", "#7fc0ee", "#3f9fdc", "#0072b2",
    "#0067a1", "#005685", "#00456b", "#003552", "#00263b",
)  # fmt: skip


class AssetFont(fonts.Font):
    """A variable font served from assets/fonts; the page asks no other host for it."""

    def __init__(self, name: str, file: str) -> None:
        super().__init__(name)
        self.address = _font_address(file)

    def stylesheet(self) -> dict[str, str | None]:
        source = f"url('{self.address}') format('woff2')"
        rule = f"@font-face{{font-family:'{self.name}';font-display:swap;font-weight:100 900;src:{source}}}"
        return {"url": None, "css": rule}


TEXT_FONT = AssetFont("Inter", "inter-latin-wght-normal.woff2")
CODE_FONT = AssetFont("JetBrains Mono", "jetbrains-mono-latin-wght-normal.woff2")


def make_theme() -> gr.themes.Base:
    """Slate and one accent; every dark value is set by hand."""
    theme = gr.themes.Base(
        primary_hue=ACCENT,
        neutral_hue=gr.themes.colors.slate,
        radius_size=gr.themes.sizes.radius_md,
        text_size=gr.themes.sizes.text_sm,
        font=[TEXT_FONT, "system-ui", "sans-serif"],
        font_mono=[CODE_FONT, "ui-monospace", "monospace"],
    )
    return theme.set(
        body_background_fill="#f7f8fa",
        body_background_fill_dark="#0b0f17",
        body_text_color="#1d2433",
        body_text_color_dark="#e6eaf2",
        body_text_color_subdued="#5b6578",
        body_text_color_subdued_dark="#9aa4b5",
        background_fill_primary="#ffffff",
        background_fill_primary_dark="#121826",
        background_fill_secondary="#ffffff",
        background_fill_secondary_dark="#121826",
        block_background_fill="#ffffff",
        block_background_fill_dark="#121826",
        border_color_primary="#dfe3ea",
        border_color_primary_dark="#263043",
        block_border_color="#dfe3ea",
        block_border_color_dark="#263043",
        block_label_text_color="#3d4658",
        block_label_text_color_dark="#c3cad8",
        block_title_text_color="#3d4658",
        block_title_text_color_dark="#c3cad8",
        block_title_text_weight="600",
        block_label_text_weight="600",
        block_shadow="none",
        block_info_text_color="#5b6578",
        block_info_text_color_dark="#9aa4b5",
        input_border_width="1px",
        input_border_width_dark="1px",
        checkbox_border_width="1px",
        input_background_fill="#ffffff",
        input_background_fill_dark="#0b0f17",
        input_border_color="#cbd2dd",
        input_border_color_dark="#33405a",
        input_placeholder_color="#5b6578",
        input_placeholder_color_dark="#9aa4b5",
        button_primary_background_fill="#0072b2",
        button_primary_background_fill_dark="#0072b2",
        button_primary_background_fill_hover="#0067a1",
        button_primary_background_fill_hover_dark="#0067a1",
        button_primary_text_color="#ffffff",
        button_primary_text_color_dark="#ffffff",
        button_secondary_background_fill="#ffffff",
        button_secondary_background_fill_dark="#1a2233",
        button_secondary_border_color="#cbd2dd",
        button_secondary_border_color_dark="#33405a",
        button_secondary_text_color="#1d2433",
        button_secondary_text_color_dark="#e6eaf2",
        color_accent="#0072b2",
        color_accent_soft="#eff8ff",
        color_accent_soft_dark="#10283a",
        link_text_color="#0067a1",
        link_text_color_dark="#7fc0ee",
        layout_gap="14px",
        form_gap_width="0px",
    )


class FigureData(str):
    """A figure as JSON."""


def plot_data(figure: go.Figure) -> FigureData:
    """``figure`` as the page's script takes it."""
    return FigureData(figure.to_json())
