"""Files by recipes and by other programs, judged by their readers, on a tiny Llama.

If these fail, `explorer bench quality` compares files on other tokens or by other logits than it says.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

from explorer.bench.llama_quantizer import LIBRARY, Replaced, quantizer_refusal, replaced_in
from explorer.bench.quality import BITS, Workshop, candidates, gguf_schemes
from explorer.checkpoints.to_gguf import EXPORT
from explorer.cli import main
from explorer.export.ggml_blocks import ggml_type
from explorer.models.texts import Texts
from explorer.schemes import SCHEMES
from tests.checkpoints.conftest import llama

__all__ = ["llama"]
TEXTS = ("Every layer of a model is a matrix.", "The cat sleeps on the warm roof, and it rains.")


@pytest.fixture(scope="module", autouse=True)
def _one_thread(one_thread: None) -> None:
    """The model is so small that a second thread costs more than it gives."""


def test_three_rows_by_the_command(
    llama: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """A GGUF file and a checkpoint of ours with their true bytes, and llama.cpp's quantizer where it is not:
    the row says how to get it."""
    monkeypatch.delenv(LIBRARY, raising=False)
    text, out = tmp_path / "texts.txt", tmp_path / "rows.json"
    text.write_text("\n".join(TEXTS))
    rows = "recipe-6-imatrix,compressed-tensors-rtn,Q4_K_M"
    command = ["bench", "quality", str(llama), "--text", str(text), "--calibration", str(text)]
    assert main([*command, "--rows", rows, "--record-to", str(out), "--json"]) == 0
    found = {row["name"]: row for row in json.loads(out.read_text())["rows"]}
    assert (
        set(found)
        == {*rows.split(",")}
        == {row["name"] for row in json.loads(capsys.readouterr().out)["rows"]}
    )
    tokenizer = AutoTokenizer.from_pretrained(llama)
    counts = [len(tokenizer(one)["input_ids"]) for one in TEXTS]
    assert len(set(counts)) > 1
    for name in ("recipe-6-imatrix", "compressed-tensors-rtn"):
        row = found[name]
        assert not row["missing"] and row["kl"] > 0 and len(row["losses"]) == len(TEXTS)
        by_token = math.fsum(map(math.prod, zip(row["losses"], counts, strict=True)))
        assert sum(counts) == row["tokens"]
        assert row["kl"] == pytest.approx(by_token / sum(counts), rel=1e-4), "nats a token, not of a text"
        assert row["bytes"] > 0 and 0 < row["same_top"] <= 1 and row["tokens"] > 2
    assert LIBRARY in found["Q4_K_M"]["missing"] and found["Q4_K_M"]["kl"] is None


def test_llama_cpp_gives_the_logits_of_every_token(llama: Path, tmp_path: Path) -> None:
    """Beside those of transformers in float32: another row order or a token left out is another KL."""
    shop = Workshop(str(llama), tmp_path, Texts(TEXTS), Texts(TEXTS))
    ids = torch.tensor([shop.model.tokenizer(TEXTS[1])["input_ids"]])
    theirs = shop.network_of(shop.base)(input_ids=ids).logits
    with torch.no_grad():
        ours = AutoModelForCausalLM.from_pretrained(llama, dtype=torch.float32)(input_ids=ids).logits
    assert theirs.shape == ours.shape and float((theirs - ours).abs().max() / ours.abs().max()) < 0.01
    with pytest.raises(ValueError, match="there is room for"):
        shop.network_of(shop.base)(input_ids=ids.repeat(1, 512))


def test_rows_are_named_once_and_patterns_choose_them() -> None:
    """A name twice would put one file's numbers into two rows."""
    every = [one.name for one in candidates()]
    assert len(every) == len(set(every)) and {f"recipe-{bits:g}-imatrix" for bits in BITS} <= set(every)
    assert [one.name for one in candidates(["Q4_K_M*"])] == ["Q4_K_M-imatrix", "Q4_K_M"]
    assert all(one.missing or one.make for one in candidates())
    with pytest.raises(ValueError, match="no row is called 'Q9'"):
        candidates(["Q9"])


def test_every_type_of_ggml_is_a_candidate_once() -> None:
    """A type that is left out is one that a recipe cannot take; of several schemes it is llama.cpp's own."""
    assert {"q8_0", "q4_k", "iq4_xs", "mxfp4"} <= set(gguf_schemes())
    kinds = [ggml_type(SCHEMES[name]) for name in gguf_schemes()]
    assert len(kinds) == len(set(kinds)) and {"Q4_1", "Q8_0", "Q4_K", "IQ4_XS", "NVFP4"} <= set(kinds)
    assert all(not EXPORT.refuses(SCHEMES[name], (2, 256)) for name in gguf_schemes())


LOG = """
warning: blk.0.attn_q - 576 (required for type    q4_K) -> falling back to    q5_0
warning: blk.0.attn_v.weight - 576 (required for type    q6_K) -> falling back to    q8_0
warning: blk.1.attn_q.weight - 576 (required for type    q4_K) -> falling back to    q5_0
"""


def test_replaced_types_are_counted() -> None:
    """A file called Q4_K_M that holds other types is told as such."""
    assert replaced_in(LOG) == Replaced(3, ("q4_K → q5_0", "q6_K → q8_0"))
    assert str(replaced_in(LOG)).startswith("other types for 3 tensors ") and not str(Replaced(0, ()))


def test_another_library_is_refused_by_its_name(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """A path that is no library, or one without the function, ends in words and not in a crash."""
    from explorer.bench import llama_quantizer

    llama_quantizer._library.cache_clear()
    monkeypatch.setenv(LIBRARY, str(tmp_path / "libllama.so"))
    assert LIBRARY in quantizer_refusal() and "libllama.so" in quantizer_refusal()
    llama_quantizer._library.cache_clear()
