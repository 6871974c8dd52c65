"""The places of the page: TITLE, NAME (also in links) and ``SECTIONS``. ``PLACES`` is their order."""

from app.places import learn, model, speed, tensor

PLACES = (learn, tensor, model, speed)

NAMES = {
    "tensor": ("tensor", ""),
    "learn": ("learn", ""),
    "model": ("model", ""),
    "speed": ("speed", ""),
    # Names of sections in links, from when each was a separate tab.
    "formats": ("learn", "formats"),
    "training": ("learn", "training"),
    "compare": ("tensor", "frontier"),
    "calibration": ("tensor", "calibration"),
    "methods": ("tensor", "methods"),
}
"""By what a link may give as ``tab``: the place and the section, empty for its beginning."""
MOVED = {
    "speed": ("speed", "speed"),
    "steps": ("speed", "speed-more"),
    "kernel": ("speed", "speed-more"),
}
"""By what a link may give as ``section``, whatever its ``tab``: place and section that have it now."""
