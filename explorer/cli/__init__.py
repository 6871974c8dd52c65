"""The command line: all results of the page as text, or as JSON with ``--json``. One file a command group.

Nothing here imports torch before a command runs, so that help and shell completion appear at once.
"""

from explorer.cli.app import main

__all__ = ["main"]
