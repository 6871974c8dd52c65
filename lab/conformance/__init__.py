"""Conformance: codes and scales of the schemes against those of other implementations, counted.

A row of ``table.ROWS`` names a scheme of ours, a function of an outside package, the convention under which
they are equal, and where and why they are not. The packages are imported when a row runs.
"""
