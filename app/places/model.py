"""The place of whole models: what a budget of bits or time buys, and the model running under it."""

from app.sections import checkpoints, run, sizes

TITLE, NAME = "Model", "model"
SECTIONS = (run.SECTION, checkpoints.SECTION, sizes.SECTION)
