"""The places of the page: TITLE, NAME (also in links) and ``build(page)``. ``PLACES`` is their order."""

from app.places import learn, model, tensor

PLACES = (learn, tensor, model)

NAMES = {
    "tensor": ("tensor", ""),
    "learn": ("learn", ""),
    "model": ("model", ""),
    # Names of sections in links, from when each was a separate tab.
    "formats": ("learn", "formats"),
    "training": ("learn", "training"),
    "compare": ("tensor", "frontier"),
    "calibration": ("tensor", "calibration"),
    "methods": ("tensor", "methods"),
    "speed": ("model", "speed"),
}
"""By what a link may give as ``tab``: the place and the section, empty for its beginning."""
