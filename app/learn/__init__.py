"""The chapters of the place Learn, and the facts that its pages compute with in the browser."""
