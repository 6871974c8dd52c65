"""The place of whole models: what a budget of bits or time buys, and the model running under it."""

from app.sections import budget, checkpoints, run, sizes

TITLE, NAME = "Model", "model"
SECTIONS = (budget.SECTION, run.SECTION, checkpoints.SECTION, sizes.SECTION)
