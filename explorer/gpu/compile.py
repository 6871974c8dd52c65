"""Compile a .cu file of ``kernels/`` and keep the cubin with ptxas's report.

``pycuda.compiler.compile`` runs nvcc where pycuda imports, which needs a driver; elsewhere nvcc's command is
run here. Both give the same bytes. pycuda's cache is off: ours is read without nvcc, too. A cubin's name is a
hash of everything that shapes it: sources, macros, options, architecture, nvcc's version. Any number of
processes may compile at once.
"""

from __future__ import annotations

import functools
import hashlib
import os
import re
import shutil
import subprocess
import tempfile
import threading
import warnings
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from explorer.paths import KERNELS

OPTIONS = ("-O3", "-std=c++17", "--fmad=false", "-Xptxas", "-v")


class KernelError(RuntimeError):
    """A kernel could not be compiled, loaded or launched; the text names it and the reason."""


@dataclass(frozen=True)
class Build:
    """One build: a file of ``kernels/`` and its -D macros, in order."""

    file: str
    macros: tuple[tuple[str, str], ...]


@dataclass(frozen=True)
class Resources:
    """ptxas's report of one kernel, per thread and per block. ``serialized``: ptxas could not keep several
    wgmma in flight and waits for each."""

    registers: int
    stack_bytes: int
    spill_bytes: int
    shared_bytes: int
    serialized: bool


def capability_of(arch: str) -> tuple[int, int]:
    """Parse ``sm_90a`` to (9, 0); ``ValueError`` for anything else."""
    if not (match := re.fullmatch(r"sm_(\d+)(\d)[af]?", arch)):
        raise ValueError(f"no architecture {arch!r}; name one like sm_80, sm_90a, sm_100a or sm_120a")
    return int(match.group(1)), int(match.group(2))


def cache_folder() -> Path:
    """The folder of compiled kernels: ``EXPLORER_KERNEL_CACHE``, or one in the user's cache folder."""
    set_by_user = os.environ.get("EXPLORER_KERNEL_CACHE")
    home = Path(os.environ.get("XDG_CACHE_HOME", Path.home() / ".cache"))
    return Path(set_by_user) if set_by_user else home / "quantization-explorer" / "kernels"


def built_folder() -> Path | None:
    """The read-only folder of kernels compiled ahead, as in an image: ``EXPLORER_BUILT_KERNELS``."""
    set_by_user = os.environ.get("EXPLORER_BUILT_KERNELS")
    return Path(set_by_user) if set_by_user else None


def included_files(file: str) -> set[str]:
    """List ``file`` and the project headers that it includes, directly or indirectly."""
    found, left = set(), {file}
    while left:
        name = left.pop()
        found.add(name)
        text = (KERNELS / name).read_text(encoding="utf-8")
        left |= set(re.findall(r'^#include "(\w+\.cuh)"', text, re.M)) - found
    return found


def compile_cubin(build: Build, arch: str) -> Path:
    """Return the cubin of ``build`` for ``arch``, kept from before or compiled by nvcc. ``KernelError`` with
    nvcc's message.

    It is written under a temporary name and renamed, so that no process reads a partial file.
    """
    folder, key = cache_folder(), _key(build, arch)
    built = built_folder()
    if built is not None and _whole(built / f"{key}.cubin"):
        return built / f"{key}.cubin"
    path = folder / f"{key}.cubin"
    if _whole(path):
        return path
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        raise KernelError(f"{build.file} is not compiled for {arch}, and there is no nvcc on the PATH")
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(dir=folder) as scratch:
            cubin, log = Path(scratch) / "kernel.cubin", Path(scratch) / "log"
            log.write_text(_compiled(nvcc, build, arch, cubin))
            (Path(scratch) / "sum").write_text(_sum(cubin))
            log.replace(path.with_suffix(".log"))
            (Path(scratch) / "sum").replace(path.with_suffix(".sum"))
            cubin.replace(path)
        (folder / "nvcc.txt").write_text(_nvcc_version())
    except OSError as error:
        raise KernelError(
            f"the kernel cache {folder} cannot be written ({error.strerror}); set EXPLORER_KERNEL_CACHE to a "
            "folder that can"
        ) from error
    return path


def _whole(path: Path) -> bool:
    """True if the kept cubin is complete: a truncated one would crash the launch."""
    known = path.with_suffix(".sum")
    return path.exists() and known.exists() and known.read_text() == _sum(path)


def _sum(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


def compile_all(
    builds: Sequence[Build], arches: Sequence[str], workers: int | None = None
) -> Iterator[tuple[Build, str]]:
    """Compile all builds, several nvcc at a time; yields each (build, arch) when it is done."""
    yield from compile_jobs([(build, arch) for arch in arches for build in dict.fromkeys(builds)], workers)


def compile_jobs(
    jobs: Sequence[tuple[Build, str]], workers: int | None = None
) -> Iterator[tuple[Build, str]]:
    """Compile builds as in ``compile_all``, with separate builds for each architecture."""
    with ThreadPoolExecutor(workers or os.cpu_count() or 1) as pool:
        started = [(pool.submit(compile_cubin, build, arch), build, arch) for build, arch in jobs]
        for job, build, arch in started:
            job.result()
            yield build, arch


def resources(build: Build, arch: str) -> dict[str, Resources]:
    """Return registers, stack, spills and static shared memory of every kernel in ``build``, as ptxas
    reported them."""
    log = compile_cubin(build, arch).with_suffix(".log").read_text()
    pattern = re.compile(
        r"entry function '(\w+)'.*?(\d+) bytes stack frame, (\d+) bytes spill stores"
        r".*?Used (\d+) registers([^\n]*)",
        re.S,
    )
    used = {}
    for name, stack, spill, registers, rest in pattern.findall(log):
        shared = re.search(r"(\d+) bytes smem", rest)
        used[name] = Resources(
            int(registers),
            int(stack),
            int(spill),
            int(shared.group(1)) if shared else 0,
            re.search(rf"instructions are serialized[^\n]*'{name}'", log) is not None,
        )
    return used


def _key(build: Build, arch: str) -> str:
    """Hash (sha256) everything that shapes the machine code."""
    parts = [build.file, repr(build.macros), arch, repr(OPTIONS), _cached_version()]
    parts += [(KERNELS / name).read_text(encoding="utf-8") for name in sorted(included_files(build.file))]
    return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]


@functools.cache
def _nvcc_version() -> str:
    nvcc = shutil.which("nvcc")
    if nvcc is None:
        return "none"
    return subprocess.run([nvcc, "--version"], capture_output=True, text=True, check=True).stdout.strip()


def _cached_version() -> str:
    """nvcc's version; without nvcc, the version that compiled the kept kernels."""
    version = _nvcc_version()
    if version != "none":
        return version
    recorded = (folder / "nvcc.txt" for folder in (built_folder(), cache_folder()) if folder)
    return next((path.read_text() for path in recorded if path.exists()), version)


def _compiled(nvcc: str, build: Build, arch: str, cubin: Path) -> str:
    """Write ``cubin`` and return ptxas's report; ``KernelError`` with nvcc's words."""
    # nvcc splits the values of its options at commas unless they are escaped.
    options = [*OPTIONS, *(f"-D{name}={value}".replace(",", "\\,") for name, value in build.macros)]
    if pycuda_compiler() is None:
        command = [nvcc, "-cubin", f"-arch={arch}", *options, "-o", str(cubin), str(KERNELS / build.file)]
        run = subprocess.run(command, capture_output=True, text=True)
        failed, said = run.returncode, run.stderr
    else:
        failed, said = _by_pycuda(nvcc, build.file, arch, options, cubin)
    if failed:
        raise KernelError(f"nvcc could not compile {build.file} for {arch}:\n{said.strip()[:4000]}")
    return said


@functools.cache
def pycuda_compiler() -> Any | None:
    """``pycuda.compiler``; None where pycuda is not installed or finds no driver."""
    try:
        import pycuda.compiler
        import pycuda.driver
    except ImportError:
        return None
    return pycuda.compiler


def _by_pycuda(nvcc: str, file: str, arch: str, options: list[str], cubin: Path) -> tuple[bool, str]:
    """Write ``cubin``. Returns whether nvcc failed, and what it said."""
    import pycuda.driver

    folders, source = [str(KERNELS)], f'#include "{file}"\n'
    compiler = pycuda_compiler()
    assert compiler is not None
    with _WARNED.here() as said:
        try:
            code = compiler.compile(
                source, nvcc, options, no_extern_c=True, arch=arch, cache_dir=False, include_dirs=folders
            )
        except pycuda.driver.CompileError as error:
            return True, str(error.stderr)
    cubin.write_bytes(code)
    return False, "\n".join(said)


class _Warned:
    """pycuda warns of all that nvcc says, ptxas's report too. Threads hear what they themselves are told:
    ``warnings`` records for the whole process."""

    def __init__(self) -> None:
        self._lock, self._heard = threading.Lock(), dict[int, list[str]]()
        self._recording: Any = None

    @contextmanager
    def here(self) -> Iterator[list[str]]:
        """Yield the list of what this thread is warned of in the block."""
        me, heard = threading.get_ident(), list[str]()
        with self._lock:
            if not self._heard:
                self._recording = warnings.catch_warnings()
                self._recording.__enter__()
                warnings.simplefilter("always")
                self._others, warnings.showwarning = warnings.showwarning, self._show
            self._heard[me] = heard
        try:
            yield heard
        finally:
            with self._lock:
                del self._heard[me]
                if not self._heard:
                    self._recording.__exit__(None, None, None)

    def _show(self, message: Warning | str, *where: Any, **options: Any) -> None:
        heard = self._heard.get(threading.get_ident())
        if heard is None:
            self._others(message, *where, **options)
        else:
            heard.append(str(message))


_WARNED = _Warned()
