"""Server of the page: access, limits, and stored data."""
