"""``explorer apply`` and what surrounds the checkpoint: the upload, the size of files, the card's header.

If these fail, a folder is published where it should not be, a token is shown, or a model loses its license.
"""

from __future__ import annotations

import json
import shutil
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from huggingface_hub import constants, metadata_load

from explorer.checkpoints.card import hub_id
from explorer.cli import main
from explorer.methods.recipe import Recipe
from explorer.survey import ModelRecipe

pytestmark = pytest.mark.usefixtures("one_thread")
TOKEN = "hf_not_to_be_shown"
LAYERS = ("model.layers.0.mlp.up_proj", "model.layers.1.mlp.up_proj")


class Hub(BaseHTTPRequestHandler):
    """As much of the Hub as an upload asks for. ``status`` of the first request; ``is_private`` is said of
    the repository; ``asked`` are (path, body)."""

    status, is_private = 200, True
    asked: list[tuple[str, bytes]]

    def log_message(self, *_: Any) -> None:
        """Nothing on standard error."""

    def do_GET(self) -> None:
        self._answer({"id": "me/tiny", "private": self.is_private, "siblings": [], "tags": []})

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        assert self.headers["Authorization"] == f"Bearer {TOKEN}"
        self.asked.append((self.path, body))
        if self.path.endswith("/create"):
            return self._answer({"url": f"{constants.ENDPOINT}/me/tiny", "error": "no"}, self.status)
        if "/preupload/" in self.path:
            files = [f | {"uploadMode": "regular", "shouldIgnore": False} for f in json.loads(body)["files"]]
            return self._answer({"files": files})
        commit = {"commitUrl": f"{constants.ENDPOINT}/me/tiny/commit/1", "commitOid": "1", "success": True}
        return self._answer(commit if "/commit/" in self.path else {"errors": [], "warnings": []})

    def _answer(self, value: object, status: int = 200) -> None:
        raw = json.dumps(value).encode()
        self.send_response(status)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(raw)))
        self.end_headers()
        self.wfile.write(raw)


@pytest.fixture
def hub(monkeypatch: pytest.MonkeyPatch) -> Iterator[type[Hub]]:
    """A Hub on loopback that takes the token ``TOKEN``, which is set."""
    handler = type("OneHub", (Hub,), {"asked": []})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    threading.Thread(target=server.serve_forever, daemon=True).start()
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    address = f"http://127.0.0.1:{server.server_address[1]}"
    monkeypatch.setattr(constants, "ENDPOINT", address)
    monkeypatch.setattr("huggingface_hub.hf_api.constants.ENDPOINT", address)
    monkeypatch.setenv("HF_TOKEN", TOKEN)
    yield handler
    server.shutdown()
    server.server_close()


@pytest.fixture
def made(tiny_llama: Path, tmp_path: Path) -> Path:
    """The recipe's file for a copy of the model with a card."""
    model = Path(shutil.copytree(tiny_llama, tmp_path / "tiny"))
    (model / "README.md").write_text(
        "---\nlicense: other\nlicense_name: tiny-terms\nlanguage: [de, en]\npipeline_tag: text-generation\n"
        "library_name: transformers\nbase_model: some/origin\ntags: [theirs]\n---\n# Tiny\n"
    )
    ModelRecipe(str(model), None, "", dict.fromkeys(LAYERS, Recipe.parse("int8_row"))).save(
        tmp_path / "r.json"
    )
    return tmp_path / "r.json"


def apply(made: Path, *more: str, to: str = "compressed-tensors") -> int:
    return main(["apply", str(made), "--to", to, "--out", str(made.parent / "out"), "--no-verify", *more])


@pytest.mark.parametrize("as_json", [False, True])
def test_a_written_folder_is_uploaded(
    as_json: bool, hub: type[Hub], made: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """All of its files in one commit, into a repository made before; the token is in no output."""
    assert apply(made, "--push", "me/tiny", "--private", *(["--json"] if as_json else [])) == 0
    out, err = capsys.readouterr()
    address = f"{constants.ENDPOINT}/me/tiny"
    assert json.loads(out)["url"] == address if as_json else address in out
    paths = [path for path, _ in hub.asked]
    assert paths[0] == "/api/repos/create" and json.loads(hub.asked[0][1])["visibility"] == "private"
    lines = [json.loads(line) for line in hub.asked[-1][1].splitlines()]
    sent = {line["value"]["path"] for line in lines if line["key"] == "file"}
    assert sent == {path.name for path in (made.parent / "out").iterdir()} > {"recipe.json", "README.md"}
    assert TOKEN not in out + err


@pytest.mark.parametrize("status", [403, 401, 501, 200, 0])
def test_a_refused_upload_leaves_the_folder(
    status: int,
    hub: type[Hub],
    made: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    """By a status, because the repository is public already (200), or as the Hub is not reached (0). Hours of
    work are not lost, nothing is public, and the token is not shown."""
    if status == 200:
        hub.is_private = False
    elif status:  # the client looks whether the repository is there
        hub.status = status
        monkeypatch.setattr(hub, "do_GET", lambda self: self._answer({"error": "no"}, status))
    else:
        monkeypatch.setattr(constants, "ENDPOINT", "http://127.0.0.1:1")
    assert apply(made, "--push", "me/tiny", "--private") == 2
    out, err = capsys.readouterr()
    last = err.strip().splitlines()[-1]
    assert last.startswith("error: ") and "me/tiny" in last
    assert ("public" in last) == (status == 200) and (f"({status})" in last) == (status > 200)
    assert (made.parent / "out" / "model.safetensors").is_file() and TOKEN not in out + err
    assert not any("/commit/" in path for path, _ in hub.asked)


def test_what_cannot_be_done_is_refused_before_any_work(
    made: Path, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A night of work that ends without a token would be lost time."""
    monkeypatch.delenv("HF_TOKEN", raising=False)
    monkeypatch.delenv("HUGGING_FACE_HUB_TOKEN", raising=False)
    monkeypatch.setattr(constants, "HF_TOKEN_PATH", str(tmp_path / "none"))
    monkeypatch.setattr(constants, "HF_HUB_OFFLINE", False)
    for more, fact in (
        (("--push", "tiny"), "owner/name"),
        (("--push", "me/ti ny"), "me/ti ny"),
        (("--private",), "--push"),
        (("--push", "me/tiny"), "HF_TOKEN"),
        (("--shard-size", "2 apples"), "'2 apples'"),
        (("--shard-size", "0"), "0 bytes"),
    ):
        assert apply(made, *more) == 2
        assert fact in capsys.readouterr().err and not (made.parent / "out").exists()


def test_files_are_of_the_size_that_was_asked(made: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """Several, listed in an index; a target whose tensors are in one file says so before it is written."""
    assert apply(made, "--shard-size", "60kB") == 0
    shards = list((made.parent / "out").glob("model-*.safetensors"))
    assert len(shards) > 1 and max(path.stat().st_size for path in shards) < 90_000
    shutil.rmtree(made.parent / "out")
    capsys.readouterr()
    for target in ("gguf", "onnx"):
        assert apply(made, "--shard-size", "60kB", to=target) == 2
        assert "compressed-tensors, " in capsys.readouterr().err
    assert not (made.parent / "out").exists()


def test_a_card_keeps_what_the_original_says_of_its_terms(made: Path) -> None:
    """License, language and use are those of the model; its tags and text are not. The recipe is beside."""
    assert apply(made) == 0
    assert metadata_load(made.parent / "out" / "README.md") == {
        "license": "other",
        "license_name": "tiny-terms",
        "language": ["de", "en"],
        "pipeline_tag": "text-generation",
        "library_name": "transformers",
        "tags": ["quantized", "compressed-tensors"],
    }
    recipe = ModelRecipe.load(made.parent / "out" / "recipe.json")
    assert recipe.layers == ModelRecipe.load(made).layers and recipe.model == "tiny"


def test_a_card_that_cannot_be_read_stops_nothing(made: Path) -> None:
    """The base model is a Hub id or nothing: a path of a machine is no use on a public card."""
    for card in ("---\nlicense: [\n---\n", "no header", "---\n- a list\n---\n"):
        (made.parent / "tiny" / "README.md").write_text(card)
        assert apply(made) == 0
        found = metadata_load(made.parent / "out" / "README.md")
        assert found == {"tags": ["quantized", "compressed-tensors"]}
        shutil.rmtree(made.parent / "out")
    folder = Path("hub/models--meta-llama--Llama-3.2-1B/snapshots/0123")
    assert hub_id(folder) == "meta-llama/Llama-3.2-1B" and hub_id(Path("models/llama")) == ""
