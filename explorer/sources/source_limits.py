"""Limits on opening and reading, in one object that is passed to every loader.

``LOCAL`` is for files and models on the user's own machine, ``HOSTED`` for visitors of a public page. Bounds
on a header hold before the header is parsed, those on a tensor before its bytes are read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

SUFFIXES = (".safetensors", ".npy", ".npz", ".pt", ".pth", ".csv", ".png", ".jpg", ".jpeg")
"""Suffixes of readable tensor files."""

PICKLED = (".pt", ".pth")
"""Suffixes of files that an unpickler has to read."""


@dataclass(frozen=True, kw_only=True)
class SourceLimits:
    """Bounds on files, folders and the Hub.

    suffixes: of the files that are opened.
    folders: whether folders of this machine, and its Hugging Face cache, are opened as models.
    token: whether the machine's Hugging Face token is sent to the Hub.
    header_bytes: of one safetensors header, index, member list of a zip archive, pickle, or answer of the
        Hub, and of all the headers of one model from the Hub together.
    tensors: listed in one file or model.
    text_bytes: of a table of text, which is parsed whole.
    pixels: of a picture, which is decoded whole.
    inflated_bytes: of one compressed array that has to be inflated to its end.
    coded_bytes: of the codes and scales of one weight, where they are read whole.
    pickle_seconds, pickle_bytes: processor time and memory of the process that reads a pickle.
    shards: files of one model.
    request_seconds: until the Hub's answer to one request begins, and between two pieces of it.
    visit_seconds: of opening one model from the Hub, reading one tensor, or fetching one model to run it.
    requests: to the Hub at the same time, for everyone together.
    fetch_bytes: of one model that is fetched to be run.
    cache_bytes: of all fetched models together; the least recently used are deleted.
    runs: Hub ids of the models that are run on text, at their default revision; None for all models. Running
        one reads its configuration, tokenizer and chat template as programs: who writes them can take all
        memory and time.
    """

    suffixes: tuple[str, ...]
    folders: bool
    token: bool
    header_bytes: int
    tensors: int
    text_bytes: int
    pixels: int
    inflated_bytes: int
    coded_bytes: int
    pickle_seconds: int
    pickle_bytes: int
    shards: int
    request_seconds: float
    visit_seconds: float
    requests: int
    fetch_bytes: int
    cache_bytes: int
    runs: tuple[str, ...] | None


LOCAL = SourceLimits(
    suffixes=SUFFIXES,
    folders=True,
    token=True,
    header_bytes=100_000_000,
    tensors=500_000,
    text_bytes=1 << 30,
    pixels=1 << 26,
    inflated_bytes=64 << 30,
    coded_bytes=64 << 30,
    pickle_seconds=20,
    pickle_bytes=1 << 30,
    shards=2000,
    request_seconds=30,
    visit_seconds=3600,
    requests=16,
    fetch_bytes=64 << 30,
    cache_bytes=64 << 30,
    runs=None,
)
HOSTED = SourceLimits(
    suffixes=tuple(suffix for suffix in SUFFIXES if suffix not in PICKLED),
    folders=False,
    token=False,
    header_bytes=16_000_000,
    tensors=100_000,
    text_bytes=32 << 20,
    pixels=1 << 25,
    inflated_bytes=1 << 30,
    coded_bytes=256 << 20,
    pickle_seconds=2,
    pickle_bytes=256 << 20,
    shards=200,
    request_seconds=10,
    visit_seconds=60,
    requests=16,
    fetch_bytes=2 << 30,
    cache_bytes=8 << 30,
    runs=(
        "BAAI/bge-small-en-v1.5",
        "EleutherAI/pythia-70m",
        "EleutherAI/pythia-160m",
        "HuggingFaceTB/SmolLM2-135M",
        "HuggingFaceTB/SmolLM2-135M-Instruct",
        "HuggingFaceTB/SmolLM2-360M",
        "HuggingFaceTB/SmolLM2-360M-Instruct",
        "google-bert/bert-base-uncased",
        "sentence-transformers/all-MiniLM-L6-v2",
    ),
)


_OF_PROCESS: list[Callable[[], SourceLimits]] = []


def bound_process(bounds: Callable[[], SourceLimits]) -> None:
    """From now on ``bounds`` take the place of ``LOCAL`` wherever this process opens something: what forgets
    to pass a public page's limits on has them nevertheless."""
    _OF_PROCESS[:] = [bounds]


def within(limits: SourceLimits) -> SourceLimits:
    """``limits``; instead of ``LOCAL``, which every loader takes by default, those of this process."""
    return _OF_PROCESS[0]() if limits is LOCAL and _OF_PROCESS else limits
