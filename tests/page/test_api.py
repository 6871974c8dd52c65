"""The page's endpoints as a program calls them, and what the server refuses."""

from __future__ import annotations

import json
import urllib.error
import urllib.request
from pathlib import Path

import httpx
import pytest
import torch
from gradio_client import Client
from safetensors.torch import save_file

from explorer import FORMATS, SCHEMES, compare, load_matrix, quantize


@pytest.fixture(scope="module")
def client(url: str) -> Client:
    return Client(url, verbose=False)


def test_names_and_lists(client: Client) -> None:
    """Programs rely on these names; nothing is called /lambda or /show_1."""
    names = set(client.view_api(return_format="dict")["named_endpoints"])  # type: ignore[index]
    assert not [n for n in names if "lambda" in n or n.endswith("_1")]
    assert [f["name"] for f in client.predict(api_name="/list_formats")] == list(FORMATS)
    assert [s["name"] for s in client.predict(api_name="/list_schemes")] == list(SCHEMES)
    assert "mlp_up" in [s["name"] for s in client.predict(api_name="/list_samples")]


def test_report_is_the_librarys(client: Client) -> None:
    (got,) = client.predict("mlp_up", "nvfp4", api_name="/report")
    x = load_matrix("sample:mlp_up").values
    want = compare(x, quantize(x, SCHEMES["nvfp4"]))
    assert (got["sqnr_db"], got["nbytes"]) == (want.sqnr_db, want.nbytes)
    with pytest.raises(Exception, match="'nope'"):
        client.predict("mlp_up", "nope", api_name="/report")


def test_layers_of_a_folder(client: Client, minilm: Path) -> None:
    found = client.predict(str(minilm), "", "layer.0.attention.self.query.weight", api_name="/model_layers")
    assert found[0]["shape"] == [384, 384]
    (got,) = client.predict(str(minilm), found[0]["name"], "int8_row", "", api_name="/report_layer")
    x = load_matrix(str(minilm), found[0]["name"]).values
    assert got["sqnr_db"] == compare(x, quantize(x, SCHEMES["int8_row"])).sqnr_db


def test_an_uploaded_file_is_shown(client: Client, tmp_path: Path, url: str) -> None:
    """By the path that the upload was answered with; no other path of the server is read."""
    save_file({"w": torch.randn(64, 96)}, path := tmp_path / "mine.safetensors")
    (stored,) = httpx.post(f"{url}/gradio_api/upload", files={"files": (path.name, path.read_bytes())}).json()
    asked = {"source": "file", "file_tensor": "w", "scheme": "mxfp4"}
    (said,) = client.predict(file=stored, **asked, api_name="/tensor")
    assert "mine.safetensors · w · 64×96" in said["tensor"]
    assert said["scheme"] == "mxfp4" and 15 < said["report"]["sqnr_db"] < 25
    for forged in ("/etc/hostname", str(path)):
        with pytest.raises(Exception, match="drop it in again"):
            client.predict(file=forged, **asked, api_name="/tensor")


def test_a_section_is_an_endpoint_of_the_keys_of_its_links(client: Client) -> None:
    """A program asks for what a section shows by the names of the address's keys."""
    slots = client.predict({"sized": "Llama-2-7B", "scheme": "nvfp4"}, api_name="/sizes")
    assert "NVFP4" in slots["table"] and json.loads(slots["cache-size"])["data"]
    for wrong, accepted in ({"sized": "GPT-9"}, "Llama-2-7B"), ({"size": "x"}, "sized"):
        with pytest.raises(Exception, match=accepted):
            client.predict(wrong, api_name="/sizes")
    endpoints = client.view_api(return_format="dict")["named_endpoints"]  # type: ignore[index]
    parameters = [p["parameter_name"] for one in endpoints.values() for p in one["parameters"]]
    assert not [name for name in parameters if name.startswith("param_")]


FORBIDDEN = [
    "/gradio_api/file=/etc/passwd",
    "/gradio_api/file=app.py",
    "/gradio_api/file=assets/../app.py",
    "/gradio_api/file=assets/%2e%2e/app.py",
]


@pytest.mark.parametrize("path", FORBIDDEN)
def test_the_servers_files_are_not_served(path: str, url: str) -> None:
    with pytest.raises(urllib.error.HTTPError) as refused:
        urllib.request.urlopen(url + path)
    assert refused.value.code in (403, 404)
