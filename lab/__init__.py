"""The laboratory, outside the package: it measures the explorer, compares it with other implementations, and
writes the measured pages of docs/. It is no part of the wheel."""
