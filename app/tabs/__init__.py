"""One module a tab: TITLE, NAME (also in links), handlers, and ``build(page)``. ``TABS`` is their order."""

from app.places import learn
from app.tabs import calibration, compare, methods, sizes, speed, tensor

TABS = (tensor, learn, compare, calibration, methods, sizes, speed)
