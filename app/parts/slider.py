"""A slider of the page's own, alone in its file: Gradio writes a stub beside that of each component."""

from __future__ import annotations

import gradio as gr


class FreeSlider(gr.Slider):
    """A slider whose ends change with what it is for: a value beyond them, sent before the browser had the
    new ones, is for its handler to take in. ``gr.Slider`` refuses it before any handler runs."""

    is_template = True  # to the browser it is a slider

    def preprocess(self, payload: float) -> float:
        """The value as it was sent; ``gr.Error`` if it is not a number, which only programs send."""
        number = isinstance(payload, int | float) and not isinstance(payload, bool)
        if not number or not -1e300 < payload < 1e300:
            raise gr.Error(f"{self.label} is a number, not {str(payload)[:40]}", print_exception=False)
        return payload
