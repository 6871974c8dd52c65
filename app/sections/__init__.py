"""The sections of the places, one module each: handlers and ``build(page)``."""
