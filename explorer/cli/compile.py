"""The command that fills the cache of compiled kernels."""

from __future__ import annotations

from typing import Annotated

import typer

from explorer.cli.options import MEASURING, Json, examples
from explorer.cli.output import PrintedTable, counted, emit

app = typer.Typer()


@app.command(
    rich_help_panel=MEASURING, epilog=examples("compile --arch sm_90a", "compile --arch sm_80 --workers 2")
)
def compile(
    arch: Annotated[
        list[str] | None,
        typer.Option(help="E.g. sm_90a; may be repeated.", show_default="that of the GPU found"),
    ] = None,
    workers: Annotated[
        int | None, typer.Option(min=1, help="How many nvcc at a time.", show_default="one a core")
    ] = None,
    as_json: Json = False,
) -> None:
    """Compile the GPU kernels ahead of time (needs nvcc, no GPU)."""
    from explorer.core.backend import gpu_arch
    from explorer.core.builds import all_builds
    from explorer.core.serialize import to_json
    from explorer.gpu import runtime
    from explorer.gpu.attend import attend_builds
    from explorer.products.gemms import all_builds as gemm_builds
    from explorer.products.grouped import all_builds as grouped_builds

    arches = arch or [found for found in [gpu_arch()] if found]
    if not arches:
        raise ValueError("no GPU found to compile for; name one with --arch, e.g. --arch sm_90a")
    jobs = []
    for name in arches:
        chip = runtime.capability_of(name)
        attention = attend_builds() if chip >= (8, 0) else []
        every = dict.fromkeys([*all_builds(), *gemm_builds(chip), *grouped_builds(chip), *attention])
        jobs += [(build, name) for build in every]
    records = [
        {
            "arch": name,
            "file": build.file,
            "options": " ".join(f"{key}={value}" for key, value in build.macros),
            "kernel": kernel,
            **to_json(used),
        }
        for build, name in counted("compiled", runtime.compile_jobs(jobs, workers), len(jobs), as_json)
        for kernel, used in runtime.resources(build, name).items()
    ]
    columns = tuple(records[0]) if records else ()
    emit(as_json, records, PrintedTable(columns, [list(record.values()) for record in records]))
