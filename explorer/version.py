"""The version, in a separate file: the command line and the build read it without importing torch."""

__version__ = "0.2.0"
