"""Files by recipes and by other programs, judged by their readers, on a tiny Llama.

If these fail, `python -m lab files` compares files on other tokens or by other logits than it says.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from explorer.models.texts import Texts
from lab.cli import main
from lab.files.llama_quantizer import LIBRARY, Replaced, replaced_in
from lab.files.measure import Workshop
from tests.checkpoints.conftest import llama
from tests.covering import THOROUGH

__all__ = ["llama"]
TEXTS = ("Every layer of a model is a matrix.", "The cat sleeps on the warm roof, and it rains.")


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    """The model is so small that a second thread costs more than it gives."""


@THOROUGH
@pytest.mark.parametrize("made", ["compressed-tensors-rtn", "recipe-6-imatrix"])
def test_rows_by_the_command(made: str, llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """A GGUF file or a checkpoint of ours with their true bytes, and llama.cpp's quantizer where it is not:
    the row says how to get it."""
    monkeypatch.delenv(LIBRARY, raising=False)
    text, out = tmp_path / "texts.txt", tmp_path / "rows.json"
    text.write_text("\n".join(TEXTS))
    command = ["files", str(llama), "--text", str(text), "--calibration", str(text)]
    assert main([*command, "--rows", f"{made},Q4_K_M", "--record-to", str(out), "--json"]) == 0
    found = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    assert set(found) == {made, "Q4_K_M"}
    tokenizer = AutoTokenizer.from_pretrained(llama)
    counts = [len(tokenizer(one)["input_ids"]) for one in TEXTS]
    assert len(set(counts)) > 1
    row = found[made]
    assert not row["missing"] and row["kl"] > 0 and len(row["losses"]) == len(TEXTS)
    by_token = math.fsum(map(math.prod, zip(row["losses"], counts, strict=True)))
    assert sum(counts) == row["tokens"]
    assert row["kl"] == pytest.approx(by_token / sum(counts), rel=1e-4), "nats a token, not of a text"
    assert row["bytes"] > 0 and 0 < row["same_top"] <= 1
    assert LIBRARY in found["Q4_K_M"]["missing"] and found["Q4_K_M"]["kl"] is None


def test_llama_cpp_gives_the_logits_of_every_token(llama: Path, tmp_path: Path) -> None:
    """Beside those of transformers in float32: another row order or a token left out is another KL."""
    shop = Workshop(str(llama), tmp_path, Texts(TEXTS), Texts(TEXTS))
    ids = torch.tensor([shop.model.tokenizer(TEXTS[1])["input_ids"]])
    theirs = shop.network_of(shop.base)(input_ids=ids).logits
    with torch.no_grad():
        ours = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)(input_ids=ids).logits
    assert theirs.shape == ours.shape and float((theirs - ours).abs().max() / ours.abs().max()) < 0.01
    with pytest.raises(ValueError):
        shop.network_of(shop.base)(input_ids=ids.repeat(1, 512))


LOG = """
warning: blk.0.attn_q - 576 (required for type    q4_K) -> falling back to    q5_0
warning: blk.0.attn_v.weight - 576 (required for type    q6_K) -> falling back to    q8_0
warning: blk.1.attn_q.weight - 576 (required for type    q4_K) -> falling back to    q5_0
"""


def test_replaced_types_are_counted() -> None:
    """A file called Q4_K_M that holds other types is told as such."""
    assert replaced_in(LOG) == Replaced(3, ("q4_K → q5_0", "q6_K → q8_0"))
    assert not str(Replaced(0, ()))
