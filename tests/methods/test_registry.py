"""Every row of ``METHODS``, and the combinations offered, everywhere: schemes, files, page, commands, models.

If these fail, a method was added in one place and is missing, or wrong, in another.
"""

from __future__ import annotations

import json
import typing
from pathlib import Path

import pytest
import torch
from safetensors.torch import save_file
from torch import Tensor

from app.sections import methods as section
from explorer import SCHEMES
from explorer.__main__ import main
from explorer.core.file import load as load_quantized
from explorer.core.file import save_quantized
from explorer.methods import COMBINATIONS, METHODS, USUAL, apply, choices, names_in
from explorer.methods.files import load_layer, save_layer
from explorer.methods.layer import QuantizedLayer, Stored
from explorer.models.evaluate import OriginalModel, evaluate_embeddings, needs_inputs

pytestmark = pytest.mark.usefixtures("one_thread")

EVERY = (*METHODS, *COMBINATIONS)


@pytest.fixture(scope="session")
def small() -> tuple[Tensor, Tensor]:
    """A weight [24, 128] and inputs [96, 128], some of them outliers."""
    generator = torch.Generator().manual_seed(0)
    w, x = torch.randn(24, 128, generator=generator), torch.randn(96, 128, generator=generator)
    x[:, [5, 77]] *= 8
    return w, x


@pytest.mark.parametrize("name", EVERY)
def test_every_method_serves_or_refuses_every_scheme(small: tuple[Tensor, Tensor], name: str) -> None:
    """A served scheme gives a layer whose output is its weight's; a refusal says what it was given. Each
    method meets a third of the schemes, each scheme a third of the methods; of combinations a sixth."""
    w, x = small[0][:8, :64], small[1][:32, :64]
    served = 0
    part = 3 if name in METHODS else 6
    for scheme in list(SCHEMES.values())[list(EVERY).index(name) % part :: part]:
        try:
            layer = apply(name, w, scheme, x)
        except ValueError as error:
            assert scheme.label in str(error), f"{name} under {scheme.name}: {error}"
            continue
        served += 1
        folded = x[:8].double() @ layer.weight().double().t() + layer.output(torch.zeros_like(x[:1]))
        torch.testing.assert_close(layer.output(x[:8]), folded, rtol=1e-2, atol=1e-2, msg=f"{scheme.name}")
    assert served


def test_every_method_is_met_by_the_tests_that_claim_so() -> None:
    """``EVERY`` is what the page offers: each row and each combination once, and the page starts with
    some."""
    assert list(choices()) == list(EVERY) and len(set(EVERY)) == len(EVERY)
    assert set(USUAL) <= set(EVERY)
    assert {row.name for name in COMBINATIONS for row in names_in(name)} <= set(METHODS)


SOLVE = {"gptq", "gptq_order", "gptq_gar", "gptq_sequential", "gptaq", "lqer", "qera"}


def test_methods_that_factor_a_matrix_of_the_inputs_say_so() -> None:
    """A server refuses them for wide layers: K³ operations cannot be stopped on the way."""
    assert {name for name, method in METHODS.items() if method.solves} == SOLVE


def test_no_two_kinds_of_stored_tensors_share_a_name() -> None:
    """Else a file is read back as another method's."""
    kinds: dict[type[Stored], None] = {}
    for row in METHODS.values():
        kinds |= {kind: None for kind in (row.transform, row.residue) if kind is not None}
    names = [name for kind in kinds for name in kind.names]
    assert len(set(names)) == len(names)


@pytest.mark.parametrize("name", [*EVERY, "rotation+hqq", "smoothquant+rotation+awq+lqer", "llm_int8+lqer"])
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
    with pytest.raises(ValueError, match=r"sparse\.values, which no method here stores"):
        load_layer(tmp_path / "x.safetensors")
    save_file({"x": torch.ones(3)}, tmp_path / "y.safetensors")
    with pytest.raises(ValueError, match="not a tensor saved by this program"):
        load_layer(tmp_path / "y.safetensors")


def test_a_new_kind_of_residue_needs_no_change_elsewhere(small: tuple[Tensor, Tensor]) -> None:
    """A layer adds whatever has the residue's methods to its product and weight."""

    class Bias(typing.NamedTuple):
        """The same number added to every weight."""

        amount: float
        bits: int = 32

        def remaining(self, x: Tensor) -> Tensor:
            return x

        def product(self, x: Tensor, remaining: Tensor) -> Tensor:
            return self.amount * remaining.sum(1, keepdim=True)

        def merged(self, values: Tensor) -> Tensor:
            return values + self.amount

    w, x = small
    layer = QuantizedLayer(apply("rtn", w, SCHEMES["int8_row"], x).q)
    biased = layer.with_residue(Bias(0.5))  # type: ignore[arg-type]
    torch.testing.assert_close(biased.output(x), layer.output(x) + 0.5 * x.double().sum(1, keepdim=True))
    assert torch.equal(biased.weight(), layer.weight() + 0.5)
    assert biased.bits_per_weight == layer.bits_per_weight + 32 / w.numel()


@pytest.fixture
def layer_file(small: tuple[Tensor, Tensor], tmp_path: Path) -> Path:
    path = tmp_path / "layer.safetensors"
    save_file({"a.weight": small[0], "a.activations": small[1]}, path)
    return path


def test_the_page_offers_and_runs_every_method(layer_file: Path) -> None:
    """The Methods section's table has a row with numbers for each, under the label it is offered by."""
    run = section.run(
        "file", "", str(layer_file), None, None, list(EVERY), ["int4_group64_asym"], "as they are"
    )
    *_, last = run
    rows = last.table
    assert [row[0] for row in rows] == list(choices().values())
    assert all(row[2] is not None for row in rows)


def test_the_command_runs_every_method(layer_file: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """`methods` gives a record for each; without --methods it runs every row."""
    arguments = ["methods", str(layer_file), "--tensor", "a.weight", "--inputs", str(layer_file)]
    arguments += ["--inputs-tensor", "a.activations", "--schemes", "int4_group64_asym", "--json"]
    for extra, expected in (((), list(METHODS)), (("--methods", ",".join(EVERY)), list(EVERY))):
        assert main([*arguments, *extra]) == 0
        records = json.loads(capsys.readouterr().out)
        assert [r["method"] for r in records] == expected
        assert all(r["output_error"] > 0 and "layer" not in r for r in records)


def test_the_command_writes_a_layer_that_can_be_read(
    layer_file: Path, small: tuple[Tensor, Tensor], capsys: pytest.CaptureFixture[str]
) -> None:
    """--out stores transforms and residues too; calibrated on the first half of the inputs."""
    out = layer_file.with_name("out.safetensors")
    arguments = ["methods", str(layer_file), "--tensor", "a.weight", "--inputs", str(layer_file)]
    arguments += ["--inputs-tensor", "a.activations", "--schemes", "int4_group64", "--out", str(out)]
    assert main([*arguments, "--methods", "rotation+gptq+lqer"]) == 0
    w, x = small
    expected = apply("rotation+gptq+lqer", w, SCHEMES["int4_group64"], x[:48])
    assert torch.equal(load_layer(out).weight(), expected.weight())


@pytest.fixture(scope="session")
def tiny_encoder(minilm: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of an encoder of one layer, 64 wide, with the real tokenizer."""
    from transformers import AutoTokenizer, BertConfig, BertModel

    folder = tmp_path_factory.mktemp("tiny")
    tokenizer = AutoTokenizer.from_pretrained(str(minilm))
    tokenizer.save_pretrained(folder)
    config = BertConfig(
        vocab_size=len(tokenizer),
        hidden_size=64,
        num_hidden_layers=1,
        num_attention_heads=2,
        intermediate_size=128,
    )
    BertModel(config).save_pretrained(folder)
    return folder


@pytest.mark.thorough
def test_the_embed_command_runs_every_method(tiny_encoder: Path, capsys: pytest.CaptureFixture[str]) -> None:
    """A whole model under each; the corrections' bits are counted there too."""
    arguments = ["embed", str(tiny_encoder), "--schemes", "int4_group64_asym", "--tokens", "80", "--json"]
    assert main([*arguments, "--methods", ",".join(EVERY)]) == 0
    rows = {r["method"]: r for r in json.loads(capsys.readouterr().out)}
    assert list(rows) == list(EVERY) and all(r["cosine"] > 0.5 for r in rows.values())
    assert rows["gptq+lqer"]["bits"] > rows["gptq"]["bits"] + 1


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


@pytest.mark.parametrize(
    "name", ["rotation+rotation", "smoothquant+rotation+smoothquant", "rotation+" * 5000]
)
def test_a_combination_has_each_method_once(name: str) -> None:
    """A link with 20,000 rotations would hold a core for minutes."""
    with pytest.raises(ValueError, match=r"each of these once|at most 200 characters"):
        names_in(name.rstrip("+"))
