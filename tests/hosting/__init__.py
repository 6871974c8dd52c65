"""The images, and the page behind a proxy."""
