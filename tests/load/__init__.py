"""Load: many visitors of the page at once, each answer checked. Run by ``make load``."""
