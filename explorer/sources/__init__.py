"""Sources of tensors: files, models, and the samples that ship with the explorer.

``load_matrix`` reads a matrix from any of them, ``open_source`` lists the tensors of a file or model.
"""

from __future__ import annotations

from pathlib import Path

from explorer.progress import Progress
from explorer.sources.base import SourceError, TensorSource
from explorer.sources.coded import STORED
from explorer.sources.matrix import Matrix
from explorer.sources.models import open_model
from explorer.sources.samples import SAMPLES
from explorer.sources.source_limits import LOCAL, SourceLimits, within
from explorer.sources.tensors import SUFFIXES, open_tensors

SAMPLE_PREFIX = "sample:"


def load_matrix(
    where: str,
    tensor: str | None = None,
    revision: str | None = None,
    max_elements: int | None = None,
    progress: Progress | None = None,
    codes: bool = False,
) -> Matrix:
    """Load a float32 matrix from any source: ``sample:NAME``, a tensor file, a model folder or a Hub id.

    ``tensor`` names the tensor in a file or model that holds several. Of a tensor of more than
    ``max_elements`` only the first rows are read. ``codes`` loads a quantized weight's codes as the file
    holds them. ``SourceError`` names the defect and the accepted input.
    """
    if where.startswith(SAMPLE_PREFIX):
        if tensor or revision:
            raise SourceError(f"{where} is one tensor and has no revisions: give its name alone")
        return load_sample(where.removeprefix(SAMPLE_PREFIX))
    source = open_source(where, revision)
    name = f"{source.info(tensor).name.removesuffix(STORED)}{STORED}" if codes else tensor
    return source.matrix(name, max_elements, progress)


def load_sample(name: str) -> Matrix:
    """Load the built-in tensor called ``name``; ``SourceError`` lists the names."""
    if name not in SAMPLES:
        raise SourceError(f"no sample {name!r}; there are {', '.join(SAMPLES)}")
    return SAMPLES[name].load()


def open_source(where: str, revision: str | None = None, limits: SourceLimits = LOCAL) -> TensorSource:
    """Open a tensor file if ``where`` has one of its suffixes, else a model.

    If ``limits`` allow no folders, it is always a model.
    """
    limits = within(limits)
    if limits.folders and Path(where).suffix.lower() in SUFFIXES:
        return open_tensors(where, limits=limits)
    return open_model(where, revision, limits)
