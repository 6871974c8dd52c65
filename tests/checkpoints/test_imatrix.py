"""llama.cpp's importance files: written and read in both forms, and what they weigh.

If these fail, files that llama.cpp's users exchange are misread, or a GGUF file holds other codes than
llama.cpp's quantizer makes of the same importances.
"""

from __future__ import annotations

import struct
from pathlib import Path

import gguf
import numpy as np
import pytest
import torch
from torch import Tensor
from transformers import LlamaForCausalLM

from explorer import SCHEMES
from explorer.checkpoints.gguf_models import in_pairs
from explorer.checkpoints.imatrix import Imatrix, Squares, read_imatrix, write_imatrix
from explorer.cli import main
from explorer.methods.recipe import Recipe
from explorer.models.capture import capture, linear_layers, load_model
from explorer.survey import ModelRecipe
from explorer.survey.importances import imatrix_of
from tests.checkpoints.conftest import TEXT
from tests.checkpoints.reading import finished
from tests.checkpoints.writing import write_checkpoint
from tests.schemes.test_k_quants import by_ggml

TEXTS = (TEXT, "Every model is rounded.", "a scheme of its own")
TYPES = ("q4_k", "q4_0", "q5_1", "iq4_xs", "q6_k", "q4_1", "q5_0", "q8_0", "q3_k", "iq4_nl", "q2_k", "q5_k")
NAMES = {
    "self_attn.q_proj": "attn_q", "self_attn.k_proj": "attn_k", "self_attn.v_proj": "attn_v",
    "self_attn.o_proj": "attn_output", "mlp.gate_proj": "ffn_gate", "mlp.up_proj": "ffn_up",
    "mlp.down_proj": "ffn_down",
}  # fmt: skip


def name_of(layer: str) -> str:
    """llama.cpp's name of a layer's weight, by the table above."""
    if layer == "lm_head":
        return "output.weight"
    _, _, block, part = layer.split(".", 3)
    return f"blk.{block}.{NAMES[part]}.weight"


def some() -> Imatrix:
    """Two tensors, one of three experts of which no token reached the second."""
    g = torch.Generator().manual_seed(0)
    experts = torch.rand(3, 64, generator=g) * 100
    experts[1] = 0
    return Imatrix(
        {
            "blk.0.attn_q.weight": Squares(torch.rand(1, 32, generator=g) * 1000, torch.tensor([700.0])),
            "blk.0.ffn_up_exps.weight": Squares(experts, torch.tensor([300.0, 0.0, 400.0])),
        },
        ("wiki.txt",),
        2,
        512,
    )


def as_llama_cpp_loads(path: Path) -> dict[str, np.ndarray]:
    """The importances of a file of the older form by the steps of llama.cpp's load_legacy_imatrix."""
    raw, at, found = path.read_bytes(), 4, {}
    for _ in range(struct.unpack_from("<i", raw)[0]):
        (length,) = struct.unpack_from("<i", raw, at)
        name = raw[at + 4 : at + 4 + length].decode()
        calls, count = struct.unpack_from("<ii", raw, at + 4 + length)
        at += 12 + length
        values = np.frombuffer(raw, "<f4", count, at).copy()
        at += 4 * count
        found[name] = values / np.float32(calls) if calls > 0 else values
    chunks, length = struct.unpack_from("<ii", raw, at)
    assert (chunks, raw[at + 8 :].decode()) == (2, "wiki.txt") and length == len("wiki.txt")
    return found


def test_the_older_form_is_what_llama_cpp_loads(tmp_path: Path) -> None:
    """The mean squares in float32 but for one rounding, 1 for an expert that no token reached; read back
    alike."""
    written, path = some(), tmp_path / "a.dat"
    write_imatrix(written, path)
    loaded, again = as_llama_cpp_loads(path), read_imatrix(path)
    assert set(loaded) == set(written.tensors) and again.datasets == ("wiki.txt",) and again.chunks == 2
    for name, squares in written.tensors.items():
        mean = squares.mean
        np.testing.assert_allclose(loaded[name], mean.flatten(), rtol=2e-7)
        read = again.importance(name, mean.shape[1], len(mean))
        assert read is not None and torch.equal(read.flatten(), torch.from_numpy(loaded[name]))
    assert loaded["blk.0.ffn_up_exps.weight"].reshape(3, 64)[1].tolist() == [1.0] * 64


def test_the_newer_form_is_what_the_package_gguf_reads(tmp_path: Path) -> None:
    """Sums and counts by name, the keys of the text and of the chunks, and no architecture."""
    written, path = some(), tmp_path / "a.gguf"
    write_imatrix(written, path)
    reader = gguf.GGUFReader(path)
    keys = {key: field.contents() for key, field in reader.fields.items() if not key.startswith("GGUF.")}
    assert keys == {
        "general.type": "imatrix",
        "imatrix.datasets": ["wiki.txt"],
        "imatrix.chunk_count": 2,
        "imatrix.chunk_size": 512,
    }
    tensors = {tensor.name: tensor for tensor in reader.tensors}
    assert len(tensors) == 4
    for name, squares in written.tensors.items():
        sums, counts = tensors[f"{name}.in_sum2"], tensors[f"{name}.counts"]
        assert np.array_equal(sums.data.reshape(squares.sums.shape), squares.sums.numpy())
        assert counts.shape.tolist() == [1, len(squares.counts)]
        assert np.array_equal(counts.data.reshape(-1), squares.counts.numpy())
    again = read_imatrix(path)
    assert (again.datasets, again.chunks, again.chunk_size) == (("wiki.txt",), 2, 512)
    assert all(torch.equal(again.tensors[n].sums, one.sums) for n, one in written.tensors.items())


def test_tensors_that_llama_cpp_adds_are_passed_over(tmp_path: Path) -> None:
    """Sums of the inputs and statistics, which may be NaN."""
    writer = gguf.GGUFWriter(tmp_path / "a.gguf", "")
    writer.add_type(gguf.GGUFType.IMATRIX)
    for name, values in {"in_sum2": [2.0, 6.0], "counts": [2.0], "in_sum": [-1.0, 1.0]}.items():
        writer.add_tensor(f"output.weight.{name}", np.array(values, np.float32))
    writer.add_tensor("output.weight.stats", np.full(11, np.nan, np.float32))
    finished(writer, tmp_path / "a.gguf")
    found = read_imatrix(tmp_path / "a.gguf")
    assert list(found.tensors) == ["output.weight"]
    importance = found.importance("output.weight", 2)
    assert importance is not None and importance.tolist() == [[1.0, 3.0]]


def _dat(*parts: bytes) -> bytes:
    return struct.pack("<i", 1) + b"".join(parts)


DAMAGED: list[tuple[bytes, str]] = [
    (b"", "number of entries"),
    (_dat(), "length of a name"),
    (_dat(struct.pack("<i", -3)), "name is -3"),
    (_dat(struct.pack("<i3sii", 3, b"abc", 1, 1 << 29)), "within its values"),
    (_dat(struct.pack("<i3siif", 3, b"abc", 1, 1, float("nan"))), "abc"),
    (_dat(struct.pack("<i3siif", 3, b"abc", 1, 1, -1.0)), "abc"),
    (_dat(struct.pack("<i3siif", 3, b"abc", 1, 1, 1.0) + b"x"), "number of chunks"),
    (b"GGUF" + bytes(40), "no importance file"),
]


def test_what_is_no_importance_file_is_refused(tmp_path: Path) -> None:
    """By what is wrong with it, before anything is quantized."""
    for raw, why in DAMAGED:
        (tmp_path / "a.dat").write_bytes(raw)
        with pytest.raises(ValueError, match=why):
            read_imatrix(tmp_path / "a.dat")
    with pytest.raises(ValueError, match=r"\.gguf, or in \.dat"):
        write_imatrix(some(), tmp_path / "a.txt")


def test_importances_are_the_mean_squares_of_inputs(llama: Path, layers: list[str]) -> None:
    """Of all tokens of all texts, by llama.cpp's names, the head's too."""
    model = load_model(str(llama), head=True)
    found, left = imatrix_of(model, str(llama), TEXTS, "some.txt")
    inputs = {one.name: one.activations for one in capture(model, TEXTS, linear_layers(model), 10_000)}
    assert not left and set(found.tensors) == {name_of(layer) for layer in inputs} and len(inputs) == 15
    for layer, rows in inputs.items():
        squares = found.tensors[name_of(layer)]
        assert squares.counts.tolist() == [len(rows)]
        torch.testing.assert_close(squares.mean[0], rows.double().square().mean(0).float())


@pytest.fixture(scope="module")
def imatrix_file(llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Of the model, by the command."""
    folder = tmp_path_factory.mktemp("imatrix")
    (folder / "text.txt").write_text("\n".join(TEXTS), encoding="utf-8")
    out = folder / "model.gguf"
    assert main(["imatrix", str(llama), "--text", str(folder / "text.txt"), "--out", str(out)]) == 0
    return out


def types(layers: list[str]) -> dict[str, Recipe]:
    """Every type with a search, one after another, and one without."""
    return {name: Recipe(SCHEMES[TYPES[i % len(TYPES)]]) for i, name in enumerate(layers)}


@pytest.mark.parametrize("way", ["folder", "base"])
def test_a_file_under_importances_has_the_bytes_of_llama_cpps_quantizer(
    way: str, llama: Path, layers: list[str], original: LlamaForCausalLM, imatrix_file: Path, tmp_path: Path
) -> None:
    """Of every type, from the model's folder and from a file in 32 bits; types that take no importances have
    the bytes that they had."""
    recipe = ModelRecipe(str(llama), None, "", types(layers), target="gguf")
    recipe.save(tmp_path / "recipe.json")
    more = []
    if way == "base":
        base = write_checkpoint("gguf", llama, {layers[0]: Recipe(SCHEMES["fp32"])}, tmp_path / "base")
        more = ["--base", str(base.folder / "model.gguf")]
    out = tmp_path / "out"
    asked = ["apply", str(tmp_path / "recipe.json"), "--to", "gguf", "--imatrix", str(imatrix_file)]
    assert main([*asked, "--out", str(out), *more]) == 0
    assert "importances of `model.gguf`" in (out / "README.md").read_text(encoding="utf-8")
    tensors = {tensor.name: tensor for tensor in gguf.GGUFReader(out / "model.gguf").tensors}
    file = read_imatrix(imatrix_file)
    for layer, one in recipe.layers.items():
        weight = _paired(layer, original.get_submodule(layer).weight.detach())
        importance = file.importance(name_of(layer), weight.shape[1])
        assert importance is not None
        want = by_ggml(weight, str(one.scheme), importance[0])
        there = torch.from_numpy(tensors[name_of(layer)].data.copy()).view(len(weight), -1)
        assert torch.equal(there, want), layer


def _paired(layer: str, weight: Tensor) -> Tensor:
    heads = {"q_proj": 4, "k_proj": 2}.get(layer.rpartition(".")[2])
    return weight if heads is None else in_pairs(weight, heads)


def test_importances_that_decide_on_nothing_are_refused(
    llama: Path, layers: list[str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Else a file is called weighed that is not: other schemes and methods, another format, another model's
    importances, or another number of columns."""
    file, saved, out = str(tmp_path / "a.gguf"), str(tmp_path / "recipe.json"), tmp_path / "out"
    name, whole, schemes = name_of(layers[0]), Squares(torch.ones(1, 256), torch.ones(1)), types(layers)
    narrow = Squares(torch.ones(1, 32), torch.ones(1))
    for recipes, tensors, target, why in (
        (dict.fromkeys(layers, Recipe(SCHEMES["q8_0"])), {name: whole}, "gguf", "q8_0"),
        (dict.fromkeys(layers, Recipe.parse("q4_0+awq")), {name: whole}, "gguf", "AWQ"),
        (schemes, {name: whole}, "awq", "--to gguf"),
        (schemes, {"blk.7.attn_q.weight": whole}, "gguf", "none of these layers"),
        (schemes, {name: narrow}, "gguf", "32 importances"),
    ):
        ModelRecipe(str(llama), None, "", recipes, target="gguf").save(saved)
        write_imatrix(Imatrix(tensors, (), 1, 512), Path(file))
        assert main(["apply", saved, "--imatrix", file, "--out", str(out), "--to", target]) == 2
        assert why in capsys.readouterr().err and not out.exists()
