"""Pieces that the places and sections are built of: the bar, cards, tables, handlers and their views."""
