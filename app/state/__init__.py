"""A visitor's selection and the results computed from it, without components of the page."""
