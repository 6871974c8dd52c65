"""What a visitor has chosen, and what is computed of it: no components of the page."""
