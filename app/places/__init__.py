"""The page's places, one module each: TITLE, NAME (also in links), and ``build(page)``."""
