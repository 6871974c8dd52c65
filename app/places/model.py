"""The place of whole models: what a budget of bits or time buys, and the model running under it."""

from app.sections import budget, checkpoints, layers, run, sizes

TITLE, NAME = "Model", "model"
SECTIONS = (budget.SECTION, layers.SECTION, run.SECTION, checkpoints.SECTION, sizes.SECTION)
