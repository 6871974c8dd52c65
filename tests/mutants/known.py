"""Why mutants survive that change no result, or none that a test should state."""

from __future__ import annotations

WHY: dict[tuple[str, str], str] = {}
"""The reason, in words, by file and change, as the page of docs/ shows it."""
