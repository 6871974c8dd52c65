"""The place of whole models: what a budget of bits or time buys, and the model running under it."""

from app.sections import checkpoints, sizes

TITLE, NAME = "Model", "model"
SECTIONS = (checkpoints.SECTION, sizes.SECTION)
