"""Every row of ``METHODS``, and the combinations offered, everywhere: schemes, files, page, commands, models.

If these fail, a method was added in one place and is missing, or wrong, in another.
"""

from __future__ import annotations

import json
import math
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from explorer import SCHEMES, quantize
from explorer.__main__ import main
from explorer.core.file import load as load_quantized
from explorer.core.file import save_quantized
from explorer.methods import COMBINATIONS, METHODS, USUAL, apply, choices, names_in
from explorer.methods.evaluate import evaluate
from explorer.methods.files import load_layer, save_layer
from explorer.methods.layer import Residue, Transform
from explorer.models.evaluate import OriginalModel, evaluate_embeddings, needs_inputs
from tests.covering import covering, parts_of, sampled

pytestmark = pytest.mark.usefixtures("one_thread")

EVERY = (*METHODS, *COMBINATIONS)


@pytest.fixture(scope="session")
def small() -> tuple[Tensor, Tensor]:
    """A weight [24, 128] and inputs [96, 128], some of them outliers."""
    generator = torch.Generator().manual_seed(0)
    w, x = torch.randn(24, 128, generator=generator), torch.randn(96, 128, generator=generator)
    x[:, [5, 77]] *= 8
    return w, x


MORE = ("rotation+hqq", "smoothquant+rotation+awq+lqer", "smoothquant+rotation+awq", "llm_int8+lqer")


SOME = covering(SCHEMES, lambda name: set(enumerate(parts_of(name))))
"""Schemes that between them have every kind of part: with a method, every pair of it and a part."""


@pytest.mark.parametrize(
    "schemes", [SOME, pytest.param(list(SCHEMES), marks=pytest.mark.thorough)], ids=["some", "all"]
)
@pytest.mark.parametrize("name", [*EVERY, *MORE])
def test_every_method_serves_or_refuses_every_scheme(
    small: tuple[Tensor, Tensor], name: str, schemes: list[str]
) -> None:
    """A served scheme gives a layer whose output is its weight's, and for no inputs what a bias corrects; a
    refusal says what it was given."""
    w, x = small[0][:8, :64], small[1][:32, :64]
    for scheme in (SCHEMES[one] for one in schemes):
        try:
            layer = apply(name, w, scheme, x)
        except ValueError as error:
            assert scheme.label in str(error), f"{name} under {scheme.name}: {error}"
            continue
        constant = layer.output(torch.zeros_like(x[:1]))
        assert name.endswith("bias_correction") or not constant.any()
        folded = x[:8].double() @ layer.weight().double().t() + constant
        torch.testing.assert_close(layer.output(x[:8]), folded, rtol=1e-2, atol=1e-2, msg=f"{scheme.name}")
    layer = apply(name, w, SCHEMES["int8_row_asym"], x)
    folded = x[:8].double() @ layer.weight().double().t() + layer.output(torch.zeros_like(x[:1]))
    bound = 2e-3 * float(folded.abs().mean())
    torch.testing.assert_close(layer.output(x[:8]), folded, rtol=2e-3, atol=bound)


@pytest.mark.parametrize("scheme", sampled(["int4_group32", "q4_k"], ["int4_group32"]))
@pytest.mark.parametrize("name", EVERY)
def test_what_no_input_reaches_is_rounded(small: tuple[Tensor, Tensor], name: str, scheme: str) -> None:
    """An expert without tokens, or a channel without input, is rounded, not wiped (Model-Optimizer pull
    1354); its output says nothing, in words."""
    w, x = small[0], small[1].clone()
    try:
        nearest = quantize(w, SCHEMES[scheme]).dequantize() - w
        nothing = evaluate(name, w, SCHEMES[scheme], torch.zeros_like(x), torch.zeros_like(x))
    except ValueError:
        return  # the method does not serve the scheme
    assert nothing.layer is not None and nothing.refused and math.isnan(nothing.output_sqnr_db)
    assert (nothing.layer.weight() - w).norm() < 1.2 * nearest.norm()
    x[:, 7] = 0
    kept = apply(name, w, SCHEMES[scheme], x).weight()[:, 7]
    assert (kept - w[:, 7]).norm() < 3 * nearest[:, 7].norm()


def test_every_method_is_met_by_the_tests_that_claim_so() -> None:
    """``EVERY`` is what the page offers: each row and each combination once, and the page starts with
    some."""
    assert list(choices()) == list(EVERY) and len(set(EVERY)) == len(EVERY)
    assert set(USUAL) <= set(EVERY)
    assert {row.name for name in COMBINATIONS for row in names_in(name)} <= set(METHODS)
    # A server refuses for wide layers what factors a matrix: K³ operations cannot be stopped on the way.
    assert METHODS["gptq"].solves and METHODS["qera"].solves and not METHODS["rtn"].solves


def test_no_two_kinds_of_stored_tensors_share_a_name() -> None:
    """Else a file is read back as another method's."""
    kinds: dict[type[Transform | Residue], None] = {}
    for row in METHODS.values():
        kinds |= {kind: None for kind in (row.transform, row.residue) if kind is not None}
    names = [name for kind in kinds for name in kind.names]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", [*EVERY, *MORE])
def test_every_layer_is_read_back_as_it_was(small: tuple[Tensor, Tensor], name: str, tmp_path: Path) -> None:
    """The same bits of output, with and without quantized inputs, and the same bits counted."""
    w, x = small
    scheme = SCHEMES["int4_group64_asym"]
    layer = apply(name, w, scheme, x)
    save_layer(layer, tmp_path / "layer.safetensors")
    loaded = load_layer(tmp_path / "layer.safetensors")
    assert torch.equal(loaded.weight(), layer.weight())
    for activations in (None, SCHEMES["int8_row"]):
        assert torch.equal(loaded.output(x, activations), layer.output(x, activations))
    assert loaded.bits_per_weight == layer.bits_per_weight
    assert torch.equal(load_quantized(tmp_path / "layer.safetensors").packed, layer.q.packed)


def test_the_keys_of_files_are_those_of_version_0_1(small: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    """Files written before layers could be loaded are read, and other programs find the keys they know."""
    w, x = small
    keys = {
        "rotation+hqq": {"change0.hadamard_signs", "change0.hadamard_order", "offset"},
        "smoothquant+awq": {"change0.input_divisor", "change1.input_divisor"},
        "llm_int8": {"kept.columns", "kept.weight"},
        "gptq+lqer": {"low_rank.down", "low_rank.up"},
        "gptq+bias_correction": {"bias_correction"},
    }
    for name, expected in keys.items():
        layer = apply(name, w, SCHEMES["int4_group64_asym"], x)
        assert set(layer.extra_tensors()) == expected
        save_quantized(layer.q, tmp_path / "old.safetensors", "weight", layer.extra_tensors())
        assert torch.equal(load_layer(tmp_path / "old.safetensors").weight(), layer.weight())


def test_a_file_with_unknown_tensors_is_refused(small: tuple[Tensor, Tensor], tmp_path: Path) -> None:
    """Else a residue of another version is left out of the product silently."""
    q = apply("rtn", small[0], SCHEMES["int8_row"], small[1]).q
    save_quantized(q, tmp_path / "x.safetensors", "weight", {"sparse.values": torch.ones(3)})
    with pytest.raises(ValueError, match=r"sparse\.values"):
        load_layer(tmp_path / "x.safetensors")
    save_file({"x": torch.ones(3)}, tmp_path / "y.safetensors")
    with pytest.raises(ValueError, match=r"y\.safetensors"):
        load_layer(tmp_path / "y.safetensors")


@pytest.fixture
def layer_file(small: tuple[Tensor, Tensor], tmp_path: Path) -> Path:
    path = tmp_path / "layer.safetensors"
    save_file({"a.weight": small[0], "a.activations": small[1]}, path)
    return path


@pytest.mark.parametrize("names", sampled([["rtn", "gptq+lqer"], [*EVERY]], [["rtn", "gptq+lqer"]]), ids=len)
def test_the_command_runs_every_method(
    layer_file: Path, small: tuple[Tensor, Tensor], names: list[str], capsys: pytest.CaptureFixture[str]
) -> None:
    """A record for each. --out stores transforms and residues, calibrated on the first half of the inputs."""
    path = str(layer_file)
    arguments = ["methods", path, "--tensor", "a.weight", "--inputs", path, "--inputs-tensor",
                 "a.activations", "--schemes", "int4_group64_asym", "--json"]  # fmt: skip
    assert main([*arguments, "--methods", ",".join(names)]) == 0
    records = json.loads(capsys.readouterr().out)
    assert [r["method"] for r in records] == names
    assert all(r["output_error"] > 0 and "layer" not in r for r in records)
    out, (w, x) = layer_file.with_name("out.safetensors"), small
    assert main([*arguments, "--out", str(out), "--methods", "rotation+gptq+lqer"]) == 0
    expected = apply("rotation+gptq+lqer", w, SCHEMES["int4_group64_asym"], x[:48])
    assert torch.equal(load_layer(out).weight(), expected.weight())


@pytest.fixture(scope="session")
def tiny_encoder(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an encoder of one layer, 64 wide, with the real tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = AutoTokenizer.from_pretrained(str(minilm))
    tokenizer.save_pretrained(folder)
    sizes = {"hidden_size": 64, "num_hidden_layers": 1, "num_attention_heads": 2, "intermediate_size": 128}
    BertModel(BertConfig(vocab_size=len(tokenizer), **sizes)).save_pretrained(folder)
    return folder


def test_only_rounding_to_nearest_needs_no_inputs(tiny_encoder: Path) -> None:
    """Capturing every layer's inputs takes a while: it is done once, and only for methods that look at
    them."""
    from explorer.models.capture import load_model

    original = OriginalModel(load_model(str(tiny_encoder)), texts=("one", "two", "three"))
    evaluate_embeddings(original, SCHEMES["int8_row"])
    assert "layers" not in vars(original) and [n for n in EVERY if not needs_inputs(n)] == ["rtn"]
    evaluate_embeddings(original, SCHEMES["int8_row"], "lqer")
    captured = vars(original)["layers"]
    evaluate_embeddings(original, SCHEMES["int8_row"], "gptq")
    assert vars(original)["layers"] is captured
