"""What ``ui.build`` hands to each tab: the sidebar's components, and where a tab says what follows them."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from app.sidebar import Sidebar
from app.views import Control, View


@dataclass(frozen=True)
class Follower:
    """A handler that runs again whenever the selection has changed.

    ``inputs`` come after the selection's; ``api_name`` is its endpoint when the page is opened, and the stem
    of those behind the sidebar's controls.
    """

    handler: Any
    inputs: list[Control]
    outputs: View | Control
    api_name: str


@dataclass(frozen=True)
class Page:
    """The page as a tab's ``build`` sees it.

    sidebar: which tensor and which scheme.
    notice: the line above the summary, for what was refused.
    summary: the line above the tabs that says both in words.
    tabs: all tabs, as a component that can be told which one is open.
    tab: one tab by its NAME, for what happens when it is opened.
    followers, events: filled by the tabs through ``follow`` and ``changed_by``.
    """

    sidebar: Sidebar
    notice: Control
    summary: Control
    tabs: gr.Tabs
    tab: Mapping[str, Control]
    followers: list[Follower] = field(default_factory=list)
    events: list[tuple[Any, str]] = field(default_factory=list)

    @property
    def selection(self) -> list[Control]:
        """The components that hold a ``Selection``: the first inputs of every handler that takes one."""
        return self.sidebar.selection()

    def follow(self, handler: Any, inputs: list[Control], outputs: View | Control, *, api_name: str) -> None:
        """Run ``handler`` whenever the selection has changed, with the selection and ``inputs``."""
        self.followers.append(Follower(handler, inputs, outputs, api_name))

    def changed_by(self, event: Any, name: str) -> None:
        """Run all followers after ``event``, which changes the selection; ``name`` ends their API names."""
        self.events.append((event, name))
