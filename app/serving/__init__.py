"""How the page is served: who may ask, how much, and what is kept."""
