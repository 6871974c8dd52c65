"""The command line as its user types it: right answers, valid JSON, one line and code 2 on bad input."""

from __future__ import annotations

import json
import os
import re
import shlex
import socket
import stat
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
import typer
from safetensors import SafetensorError
from safetensors.torch import save_file

import explorer
from explorer import SCHEMES, compare, gpu, load_matrix, quantize
from explorer.cli import bench, main, page
from explorer.cli.app import app
from explorer.cli.output import PrintedTable, counted, render
from explorer.core.file import load as load_quantized
from explorer.core.file import save_quantized
from explorer.export.files import write_tensors
from explorer.survey.rows import SURVEYS
from lab import cli as lab
from tests.covering import EACH_SCHEME, THOROUGH, sampled

ROOT = Path(__file__).resolve().parents[1]


def run(capsys: pytest.CaptureFixture[str], *arguments: str) -> tuple[int, str, str]:
    code = lab.main(arguments[1:]) if arguments[:1] == ("lab",) else main(arguments)
    out, err = capsys.readouterr()
    return code, out, err


COMMANDS = {
    "formats": "name label bits packed_bits exponent mantissa bias max tiniest eps finite_values note",
    "schemes": "name label format block scale mapping calibrator least_squares_scale seed describe",
    "quantize sample:attention_query --scheme nvfp4": "report",
    "compare sample:query_in --schemes nvfp4,int8_row": "scheme sqnr_db mse rmse mae relative_error cosine "
    "kl max_error max_error_at clipped zeroed codes_used entropy_bits bits nbytes total_bits on_frontier",
    "calibrate sample:query_in --own 0.5": "method label low high report",
    "methods sample:attention_query --inputs sample:query_in --methods rtn,gptq,rotation+awq"
    " --schemes int4_group128,int8_row": "method label scheme activations output_error output_sqnr_db "
    "weight_sqnr_db channel_error bits seconds refused",
    "train --widths 4,binary --seeds 1 --epochs 2 --again 1": "",
    "train --loss-scaling": "",
    "bench cpu --shape 64x64 --schemes bf16": "scheme shape quantize_s dequantize_s report_s total_s threads",
    "bench gemm --shape 8x16x32 --gemms fp32,bf16": "",
    "speed 1536x384 --schemes nvfp4,mxfp4,int8_tensor --tokens 1,64": "",
    "lab methods --shape 16x64 --schemes int4_group32_asym --repeats 1": "",
    "lab conformance --packages ml_dtypes": "name scheme package version function convention differs verdict",
}
"""What programs read: a field of the library may be renamed, its key in JSON may not."""


LONG = re.compile("train --widths|bench gemm|lab methods")


@pytest.mark.parametrize("command", sampled(COMMANDS, [c for c in COMMANDS if not LONG.match(c)]))
def test_every_command_prints_a_table_and_json(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Text for a reader, JSON for a program; neither shows a progress bar where there is no terminal."""
    code, out, err = run(capsys, *command.split())
    assert code == 0 and len(out.splitlines()) > 2 and "━" not in err
    code, out, err = run(capsys, *command.split(), "--json")
    found = json.loads(out)
    assert code == 0 and set(COMMANDS[command].split()) <= set(found[0] if isinstance(found, list) else found)


@THOROUGH
def test_help_of_every_command(capsys: pytest.CaptureFixture[str]) -> None:
    """By the registry of commands, with those of groups; docs/ parses the examples."""
    commands = typer.main.get_command(app).commands.items()  # type: ignore[attr-defined]
    names = [[name] for name, command in commands if not command.hidden]
    names += [["bench", c.callback.__name__] for c in bench.app.registered_commands if not c.hidden]
    for name in names:
        code, out, _ = run(capsys, *name, "--help")
        assert code == 0 and " ".join(name) in out, name
    assert run(capsys, "--version")[1] == f"explorer {explorer.__version__}\n"


def test_quantize_reports_what_the_library_reports(capsys: pytest.CaptureFixture[str]) -> None:
    _, out, _ = run(capsys, "quantize", "sample:mlp_up", "--scheme", "int4_group128_asym", "--json")
    x = load_matrix("sample:mlp_up").values
    want = compare(x, quantize(x, SCHEMES["int4_group128_asym"]))
    got = json.loads(out)["report"]
    assert (got["sqnr_db"], got["nbytes"], tuple(got["max_error_at"])) == (
        want.sqnr_db,
        want.nbytes,
        want.max_error_at,
    )


def test_a_float64_value_beyond_float32_is_named_with_its_place(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If this fails, the largest value of a file of many has to be searched for."""
    x = np.ones((2, 3, 4))
    x[1, 2, 3] = 1e39
    np.save(tmp_path / "x.npy", x)
    code, _, err = run(capsys, "quantize", str(tmp_path / "x.npy"), "--scheme", "nvfp4")
    assert code == 2 and "1 of 24 float64 values" in err and "the first at row 5, column 3" in err


@pytest.mark.parametrize(("rows", "said"), [(4, True), (100, False)])
def test_kl_of_a_small_sample_is_said_to_be_one(
    rows: int, said: bool, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If this fails, the KL of a few rows is read as that of the tensor: it is twice as large."""
    np.save(tmp_path / "x.npy", np.random.default_rng(0).standard_normal((rows, 384), np.float32))
    command = ("quantize", str(tmp_path / "x.npy"), "--scheme", "int4_group128")
    assert ("kl: 1,536 values are 6 per bin in 256 bins" in run(capsys, *command)[1]) is said
    assert ("note" in json.loads(run(capsys, *command, "--json")[1])["report"]) is said


def test_layers_of_a_folder_with_a_broken_file(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """The others are listed; the broken one is named on standard error, so that JSON stays JSON."""
    save_file({"w": torch.ones(2, 2)}, tmp_path / "good.safetensors")
    (tmp_path / "bad.safetensors").write_bytes(b"abc")
    code, out, err = run(capsys, "layers", str(tmp_path), "--json")
    assert code == 0 and json.loads(out)[0]["name"] == "w"
    assert err.startswith("left out: bad.safetensors") and len(err.splitlines()) == 1


def test_capture_then_methods_then_out(
    minilm: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The whole way: text through a real model, a layer's inputs to a file; the layer is read back."""
    (tmp_path / "text.txt").write_text("One line of text.\n\nAnd another one, a little longer.\n")
    out = tmp_path / "c.safetensors"
    code, text, _ = run(
        capsys,
        "capture",
        str(minilm),
        "--text",
        str(tmp_path / "text.txt"),
        "--layers",
        "layer.0.attention.self",
        "--tokens",
        "12",
        "--out",
        str(out),
        "--json",
    )
    rows = json.loads(text)
    assert code == 0 and [r["tokens"] for r in rows] == [12, 12, 12] and "columns with outliers" in rows[0]
    name = "encoder.layer.0.attention.self.query"
    q = tmp_path / "q.safetensors"
    code, text, _ = run(
        capsys,
        "methods",
        str(out),
        "--tensor",
        f"{name}.weight",
        "--inputs",
        str(out),
        "--inputs-tensor",
        f"{name}.activations",
        "--methods",
        "awq",
        "--schemes",
        "int4_group128",
        "--out",
        str(q),
        "--json",
    )
    bits = 4 + 16 / 128 + 16 / 384  # codes, scales of groups, and AWQ's of channels
    assert code == 0 and json.loads(text)[0]["bits"] == pytest.approx(bits)
    assert load_quantized(q).shape == (384, 384)
    code, _, err = run(
        capsys, "capture", str(minilm), "--text", str(tmp_path / "text.txt"), "--layers", "nope"
    )
    assert code == 2 and "no linear layer" in err


BAD = {
    "quantize sample:mlp_up --scheme int4_grup128": "did you mean int4_group128",
    "quantize sample:nope --scheme nvfp4": "no sample",
    "quantize gone.safetensors --scheme nvfp4": "no such file",
    "compare sample:mlp_up --schemes x": "no scheme",
    "layers 'not a model'": "no Hub id",
    "calibrate sample:mlp_up --scheme bf16": "it has no range",
    "calibrate sample:mlp_up --own 2": "share",
    "methods sample:mlp_up --inputs sample:mlp_down_in": "[tokens, K]",
    "methods sample:mlp_up --inputs sample:mlp_up_in --methods gptq+awq": "GPTQ",
    "methods sample:mlp_up --inputs sample:mlp_up_in --out x.safetensors": "one method",
    "train --widths 9": "no width '9'",
    "train --seeds 0": "at least one",
    "embed 'no such folder/at all'": "no folder 'no such folder/at all' here",
    "bench gemm --gemms nope": "no product 'nope'",
    "bench gemm --shape 64x64": "M x N x K",
    "speed 64": "SHAPE 64: expected a shape of N x K",
    "speed 64x64 --tokens 0": "whole numbers from 1",
    "speed 64x64 --schemes nope": "no scheme 'nope'",
    "bench gemm --gemms bf16 --variants nope": "no kernel on a CPU is called 'nope'",
    "bench gemm --gemms ,": "comma",
    "bench cpu --schemes ,": "comma",
    "bench cpu --repeats 0": "--repeats",
    "lab page --tensors nope": "no built-in tensor 'nope'; there are mlp_up",
    "lab first-numbers --shape 128x128": "128×128",
    "lab page --actions dance": "no action 'dance'; there are scheme A by key",
    "compare sample:query_in --schemes ,": "comma",
    "methods sample:attention_query --inputs sample:query_in --methods ,": "comma",
    "methods sample:attention_query --inputs sample:query_in --schemes ,": "comma",
    "embed x --methods ,": "comma",
    "train --widths ,": "comma",
    "compile --arch sm_90a --workers -1": "--workers",
    "compile --arch h100": "no architecture 'h100'",
    "lab conformance --packages numpy": "no rows compare with numpy",
    "lab conformance --record": "give --full",
    "lab conformance --full --record --packages gguf": "no --packages",
    "quantize sample:mlp_up --scheme nvfp4 --out /no/such/q.safetensors": "no folder /no/such",
    "capture gone --text README.md --out /no/such/q.safetensors": "no folder /no/such",
    "quantize sample:mlp_up --scheme nvfp4 --tensor foo": "sample:mlp_up",
    "quantize sample:mlp_up --scheme nvfp4 --revision main": "sample:mlp_up",
    "quantize pyproject.toml --scheme nvfp4": ".safetensors, .npy",
    "quantize sample:query_in --scheme nvfp4 --out q.npy": ".safetensors",
    "quantize sample:mlp_up --scheme int8_row --layout onnx": "--out FILE.onnx",
    "quantize sample:mlp_up --scheme int8_row --layout onnx --out q.gguf": ".onnx",
    "quantize sample:mlp_up --scheme int8_row --layout ggml --out q.gguf": "ggml",
    "quantize sample:query_in --scheme nvfp4 --layout gguf --out q.gguf": "GGUF",
    "capture gone --text nope.txt": "error: nope.txt: no such file",
    "capture gone --text tests": "error: tests: is a directory",
    "page gone.npy": "error: gone.npy: no such file",
    "page tests": "error: tests: is a directory",
    "page README.md": ".safetensors, .npy",
    "page layer.npy --share": "--share",
    "page --port 70000": "'--port'",
    "embed /nope": "no folder '/nope' here",
    "embed ./nope": "no folder './nope' here",
    "capture docs --text README.md": "no .safetensors files",
    "methods sample:attention_query --inputs sample:mlp_down_in": "384 columns, ",
    "methods gone.npy --inputs gone.npy --methods rtn --out /no/such/q.safetensors": "no folder /no/such",
    "quantize": "Missing argument",
    "quantise": "quantise",
    "formats --yaml": "--yaml",
    "bench": "one of cpu, model, quantize, gemm, steps, grouped.",
    "bench steps --batches 0": "whole numbers from 1",
    "quantize sample:mlp_up": "--scheme",
    "capture": "Missing argument",
    "bench gpu": "gpu",
    "bench cpu --shape 64": "rows x columns",
    "train --seeds many": "--seeds",
    "compare sample:mlp_up --device tpu": "auto, cpu or cuda",
}


@pytest.mark.parametrize("command", BAD)
def test_bad_input_is_one_line_and_code_2(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    """Scripts read the code, people the line: it names what is wrong, or what is accepted."""
    code, out, err = run(capsys, *shlex.split(command))
    assert code == 2 and out == "" and BAD[command] in err
    assert err.startswith("error: ") and len(err.strip().splitlines()) == 1


def test_a_page_on_a_taken_port_names_it(capsys: pytest.CaptureFixture[str]) -> None:
    """Before anything is loaded: which port, and how to choose another."""
    with socket.create_server(("127.0.0.1", 0)) as taken:
        port = str(taken.getsockname()[1])
        code, out, err = run(capsys, "page", "--port", port)
    assert (code, out) == (2, "") and f"port {port} of 127.0.0.1" in err and "--port" in err


def test_a_page_without_its_packages_says_what_installs_them(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``pip install quantization-explorer`` alone brings no page; a checkout has requirements.txt."""
    monkeypatch.setattr(page, "NEEDED", ("no_such_gradio", "plotly"))
    for checkout, command in ((ROOT, "-r requirements.txt"), (None, "'quantization-explorer[page]'")):
        monkeypatch.setattr(page, "CHECKOUT", checkout)
        code, _, err = run(capsys, "page")
        assert (
            code == 2
            and err == f"error: the page needs no_such_gradio, not installed here: pip install {command}\n"
        )


def test_only_regular_files_are_replaced(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A device or a pipe that is replaced by a file is gone for everybody on the machine."""
    pipe = tmp_path / "q.safetensors"
    os.mkfifo(pipe)
    code, _, err = run(capsys, "quantize", "sample:query_in", "--scheme", "nvfp4", "--out", str(pipe))
    assert code == 2 and "no regular file" in err and len(err.strip().splitlines()) == 1
    assert stat.S_ISFIFO(pipe.stat().st_mode)
    with pytest.raises(OSError, match="no regular file"):
        write_tensors({"x": torch.zeros(1)}, pipe, {})


def test_what_a_command_reads_or_another_program_made_stays(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """An output over its input is lost work (llama.cpp issue 12753); files have the mode that umask gives."""
    weights, own, link = (tmp_path / f"{name}.safetensors" for name in ("weights", "own", "link"))
    save_file({"w": torch.randn(8, 64)}, weights)
    link.symlink_to(weights)
    before, command = weights.read_bytes(), ("quantize", str(weights), "--scheme", "int8_row", "--out")
    for out in (weights, link):
        code, _, err = run(capsys, *command, str(out), "--force")
        assert code == 2 and "is read by this command" in err and weights.read_bytes() == before
    for _ in range(2):  # its own file is replaced
        assert run(capsys, *command, str(own))[0] == 0
    assert own.stat().st_mode & 0o777 == 0o666 & ~(mask := os.umask(0)) and os.umask(mask) == 0
    other = ("quantize", "sample:query_in", "--scheme", "int8_row", "--out", str(weights))
    code, _, err = run(capsys, *other)
    assert code == 2 and "--force" in err and weights.read_bytes() == before
    assert run(capsys, *other, "--force")[0] == 0 and weights.read_bytes() != before


def test_a_full_disk_leaves_what_was_there(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    """One line, the old file whole, and no half file beside it."""
    out = tmp_path / "q.safetensors"
    out.write_bytes(b"quantization_explorer before")

    def full(tensors: object, path: Path, about: object) -> None:
        Path(path).write_bytes(b"half")
        raise SafetensorError("I/O error: No space left on device (os error 28)")

    monkeypatch.setattr("explorer.export.files.save_file", full)
    code, _, err = run(capsys, "quantize", "sample:query_in", "--scheme", "nvfp4", "--out", str(out))
    assert code == 2 and "No space left" in err and len(err.strip().splitlines()) == 1
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"quantization_explorer before"]


@pytest.mark.skipif(gpu.available().ok, reason="there is a GPU here")
def test_the_option_wins_over_the_programs_choice(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """``--device`` holds for one command, the program's own choice for those without it and afterwards."""
    monkeypatch.setattr(gpu, "available", lambda: gpu.Availability(False, "no GPU found"))
    monkeypatch.setenv("EXPLORER_DEVICE", "auto")
    command = ("quantize", "sample:query_in", "--scheme", "nvfp4")
    explorer.use_device("cpu")
    code, _, err = run(capsys, *command, "--device", "cuda")
    assert code == 2 and "the device cuda was chosen, but: no GPU found" in err
    assert os.environ["EXPLORER_DEVICE"] == "cpu" and run(capsys, *command)[0] == 0
    monkeypatch.setenv("EXPLORER_DEVICE", "cuda")
    assert run(capsys, *command)[0] == 2 and run(capsys, *command, "--device", "auto")[0] == 0
    assert os.environ["EXPLORER_DEVICE"] == "cuda" and run(capsys, *command, "--device", "cpu")[0] == 0


TABLE = PrintedTable(
    ("name", "count", "what"), [("nvfp4", 4.5, "a sentence that is long " * 4), ("bf16", None, "x")]
)


HOSTILE = "q\x1b]0;title\x07\x9b2J\nerror: \u202egpj.exe\u2028<img src=x>|`*_[a](b)\ud800"
"""A name that moves the cursor, sets the window's title, breaks lines and turns the direction of writing."""


def is_text(shown: str) -> bool:
    """Whether all of it is seen: no control characters but the ends of lines."""
    return shown.replace("\n", "").isprintable()


@pytest.fixture
def renamed_survey(tmp_path: Path) -> Path:
    """A survey that ships with the explorer, of layers with hostile names."""
    head, *lines = next(SURVEYS.glob("*.jsonl")).read_text(encoding="utf-8").splitlines()
    found = [json.loads(line) for line in lines]
    renamed = [json.dumps({**layer, "name": f"{HOSTILE}{i}"}) for i, layer in enumerate(found)]
    path = tmp_path / "s.jsonl"
    path.write_text("\n".join([json.dumps({**json.loads(head), "model": HOSTILE}), *renamed, ""]))
    return path


def test_names_of_layers_are_text_on_a_terminal(
    renamed_survey: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A survey is a file of somebody: escape sequences in it are shown, not obeyed."""
    command = ("recipe", str(renamed_survey), "--bits", "4.6")
    code, out, err = run(capsys, *command)
    assert code == 0 and is_text(out) and is_text(err)
    assert r"q\x1b]0;title\x07\x9b2J\nerror: \u202egpj" in "".join(out.split("\n")[2:4])
    code, out, err = run(capsys, *command, "--json")
    assert code == 0 and is_text(out) and is_text(err)
    layers = json.loads(out)["recipe"]["layers"]
    assert layers and all(name.startswith(HOSTILE) for name in layers), "JSON has the name itself"


def test_names_of_files_are_text_on_a_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Folders, files that are left out, and what is written."""
    name = HOSTILE.replace("/", "")
    folder = tmp_path / name.encode("utf-8", "surrogatepass").decode("utf-8", "surrogateescape")
    folder.mkdir()
    code, out, err = run(capsys, "layers", str(folder))
    assert code == 2 and is_text(out + err) and len(err.splitlines()) == 1
    (folder / f"{folder.name}.safetensors").write_bytes(b"abc")
    save_file({"w": torch.ones(2, 32)}, folder / "good.safetensors")
    code, out, err = run(capsys, "layers", str(folder))
    assert code == 0 and is_text(out) and is_text(err) and len(err.splitlines()) == 1
    wanted = ("quantize", str(folder), "--scheme", "int8_row", "--out", str(folder / "q.safetensors"))
    code, out, err = run(capsys, *wanted)
    assert code == 0 and is_text(out) and is_text(err) and "written: " in out
    for asked in (("--tensor", HOSTILE), ("--revision", HOSTILE), ("--out", HOSTILE), ("--device", HOSTILE)):
        code, out, err = run(capsys, *wanted, *asked)
        assert code == 2 and is_text(out) and is_text(err) and len(err.splitlines()) == 1


@pytest.mark.parametrize("width", [40, 80, 400])
def test_tables_fit_the_terminal(width: int) -> None:
    """Long texts are wrapped, none is cut off, and the names stay whole."""
    text = render(TABLE, width)
    assert max(map(len, text.splitlines())) <= width
    words = " ".join(text.split())
    assert "nvfp4" in words and "bf16" in words and words.count("sentence") == 4 and "4.5" in words


def test_progress_is_shown_on_a_terminal_alone(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """With rate and time left on a terminal; nothing with --json, or into a log."""
    for as_json, terminal in ((False, False), (True, True)):
        monkeypatch.setattr(sys.stderr, "isatty", lambda terminal=terminal: terminal)
        assert counted("networks", range(3), 3, as_json) == [0, 1, 2]
        assert capsys.readouterr().err == ""
    monkeypatch.setenv("TTY_COMPATIBLE", "1")
    monkeypatch.setattr(sys.stderr, "isatty", lambda: True)
    assert counted("networks", range(3), 3, False) == [0, 1, 2]
    err = capsys.readouterr().err
    assert "networks" in err and "3/3" in err and "0:00:00" in err


@pytest.mark.parametrize("name", EACH_SCHEME)
def test_saved_tensors_come_back_bit_for_bit(name: str, tmp_path: Path) -> None:
    """Codes, scales in their own dtypes, zero points and tensor scale survive the file exactly."""
    q = quantize(torch.randn(37, 150, generator=torch.Generator().manual_seed(0)), SCHEMES[name])
    save_quantized(q, tmp_path / "q.safetensors", "layer.weight")
    again = load_quantized(tmp_path / "q.safetensors")
    assert again.scheme == q.scheme and torch.equal(again.dequantize(), q.dequantize())
    stored = sum(p.stat().st_size for p in tmp_path.iterdir())
    assert stored < q.nbytes + 1800, "the file is as small as promised"


def test_waiting_threads_leave_the_processor_to_others() -> None:
    """If this fails, two threads of torch on busy cores spin for each other: fifteen times the CPU time.

    A child asks, since the setting must be there before torch is loaded.
    """
    asked = (
        "import os, sys; from explorer.cli import main; early = 'torch' not in sys.modules; "
        "main(['--version']); print(early, os.environ['OMP_WAIT_POLICY'])"
    )
    for given, found in (({}, "PASSIVE"), ({"OMP_WAIT_POLICY": "ACTIVE"}, "ACTIVE")):
        clean = {name: text for name, text in os.environ.items() if name != "OMP_WAIT_POLICY"}
        run = subprocess.run([sys.executable, "-c", asked], env=clean | given, capture_output=True, text=True)
        assert run.stdout.split()[-2:] == ["True", found], run.stderr


def test_a_shell_completes_commands() -> None:
    """What the script of --install-completion asks for when somebody presses Tab."""
    asked = {"_EXPLORER_COMPLETE": "complete_bash", "COMP_WORDS": "explorer ca", "COMP_CWORD": "1"}
    done = subprocess.run(
        [sys.executable, "-m", "explorer"],
        env={**os.environ, **asked},
        cwd=ROOT,
        capture_output=True,
        text=True,
    )
    assert done.stdout.split() == ["calibrate", "capture", "cache"]


def test_a_foreign_file_is_not_a_quantized_tensor(tmp_path: Path) -> None:
    save_file({"a": torch.ones(2, 2)}, tmp_path / "x.safetensors")
    with pytest.raises(ValueError, match=r"x\.safetensors"):
        load_quantized(tmp_path / "x.safetensors")
