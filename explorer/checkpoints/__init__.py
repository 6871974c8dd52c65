"""Checkpoints that other programs load: ``write_checkpoint``, and the targets in ``EXPORTS``."""

from explorer.checkpoints.export import Export, Plan
from explorer.checkpoints.table import EXPORTS
from explorer.checkpoints.write import Written, rounded, write_checkpoint, write_one

__all__ = ["EXPORTS", "Export", "Plan", "Written", "rounded", "write_checkpoint", "write_one"]
