"""The page's tabs, one file each: TITLE, NAME, pure handlers, and build(page)."""
