"""The laboratory's benchmarks: methods, a tensor's analysis, large tensors, and the page in a browser."""

from __future__ import annotations

import dataclasses
import os
from collections.abc import Sequence
from itertools import chain

from explorer import words
from explorer.analysis.estimate import WORTH
from explorer.bench.commands import CPU, Benchmark, Line, Shapes, matrices
from explorer.core.backend import work_device
from explorer.methods import METHODS
from explorer.paths import checkout
from explorer.recordings.files import as_json
from explorer.recordings.machine import Machine, this_machine
from explorer.schemes import SCHEMES, Scheme
from lab import analysis, first_numbers, methods, page, sizes
from lab.analysis import AnalysisTiming, time_analyses
from lab.first_numbers import FirstNumbers, time_first_numbers
from lab.methods import MethodTiming, time_methods
from lab.page import PageTiming, time_page
from lab.sizes import SizeTiming, size_line, time_sizes


def bench_methods(
    schemes: Sequence[Scheme] | None, shapes: Shapes | None = None, repeats: int = 3
) -> Benchmark[MethodTiming]:
    """Every method on a random layer, on the GPU if there is one."""
    every, sizes = list(schemes or [SCHEMES["int4_group128_asym"]]), matrices(shapes or [(4096, 4096)])
    rows = chain.from_iterable(time_methods(every, shape, work_device(), repeats) for shape in sizes)
    total = len(every) * len(sizes) * len(METHODS)
    return Benchmark(methods.NAME, this_machine(work_device()), rows, total, as_json)


def bench_analysis(
    schemes: Sequence[Scheme] | None, shapes: Shapes | None = None, repeats: int = 3
) -> Benchmark[AnalysisTiming]:
    """The analysis of a random tensor that the Tensor place shows, on the GPU if there is one."""
    every, sizes = list(schemes or SCHEMES.values()), matrices(shapes or [(4096, 4096)])
    rows = chain.from_iterable(time_analyses(every, shape, work_device(), repeats) for shape in sizes)
    total = len(every) * len(sizes)
    return Benchmark(analysis.NAME, this_machine(work_device()), rows, total, as_json)


def bench_sizes(
    schemes: Sequence[Scheme] | None = None, shapes: Shapes | None = None
) -> Benchmark[SizeTiming]:
    """Time and memory for each element of small and large random tensors, on one thread of the CPU."""
    every = list(schemes or map(Scheme.parse, sizes.SCHEMES_MEASURED))
    wanted = matrices(shapes or list(sizes.SIZES))
    machine = dataclasses.replace(this_machine(CPU), threads=1)
    rows = time_sizes(every, wanted)
    return Benchmark(sizes.NAME, machine, rows, len(every) * len(wanted), size_line, of_gpu=False)


def bench_page(
    tensors: Sequence[str] | None = None,
    actions: Sequence[str] | None = None,
    repeats: int = 5,
    updates: int = 200,
    url: str | None = None,
) -> Benchmark[PageTiming]:
    """The page in a headless Chromium: this checkout's, started for it, or the one that runs at ``url``."""
    names, acts = list(tensors or page.TENSORS), list(actions or page.ACTIONS)
    page.check(names, acts, repeats, updates)
    machine = _with_browser(url)
    rows = time_page(url, names, acts, repeats, updates)
    total = len(names) * (1 + len(acts)) + bool(updates)
    return Benchmark(page.NAME, machine, rows, total, page_line, of_gpu=False)


def _with_browser(url: str | None) -> Machine:
    """This machine with its Chromium, for the page at ``url``; ``ValueError`` without a checkout to start one
    of."""
    if url is None:
        checkout()
    machine = dataclasses.replace(this_machine(CPU, ("gradio", "plotly")), threads=os.cpu_count())
    machine.packages["Chromium"] = page.chromium_version()
    return machine


def bench_first_numbers(
    shapes: Shapes | None = None, repeats: int = 5, url: str | None = None
) -> Benchmark[FirstNumbers]:
    """First numbers of large files on the page in a headless Chromium."""
    wanted = matrices(shapes or list(first_numbers.SIZES))
    for rows, columns in wanted:
        if rows * columns <= WORTH:
            raise ValueError(
                f"{rows}×{columns} has no first numbers: expected more than {WORTH >> 20} M elements"
            )
    machine = _with_browser(url)
    timed = time_first_numbers(url, wanted, repeats)
    rows = len(wanted) * (2 if url else 3)
    return Benchmark(first_numbers.NAME, machine, timed, rows, first_numbers_line, of_gpu=False)


def first_numbers_line(row: FirstNumbers) -> Line:
    """One act with one file."""
    return {
        "act": row.act,
        "shape": "×".join(map(str, row.shape)),
        "repeats": row.repeats,
        "first numbers": words.duration(row.first_s),
        "longest": words.duration(row.high_s),
        "all numbers": words.duration(row.whole_s),
    }


def page_line(timing: PageTiming) -> Line:
    """One action on the page."""
    return {
        "action": timing.action,
        "tensor": timing.tensor,
        "repeats": timing.repeats,
        "painted": words.duration(timing.median_s),
        "first change": words.duration(timing.first_s),
        "longest": words.duration(timing.high_s),
        "received": words.bytes_(timing.received_bytes),
        "layout shift": round(timing.layout_shift, 4),
        "longest task": words.duration(timing.longest_task_s),
        "heap": None if timing.heap_growth is None else words.times(timing.heap_growth),
    }
