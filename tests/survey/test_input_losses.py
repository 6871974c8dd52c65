"""What quantizing the inputs of single layers costs, as a survey predicts it.

If these fail, a recipe quantizes the inputs of layers that lose by it, or the loss that it predicts is of
something else than the model that it makes.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from scipy.stats import spearmanr
from torch import Tensor, nn

from explorer import SCHEMES
from explorer.cli import main
from explorer.models.capture import Model, load_model
from explorer.models.inputs import find_input_scales, quantized_inputs
from explorer.survey import Survey, load_survey
from explorer.survey.evidence import gather, weights_of
from explorer.survey.loss import LossReference, each_objective, reference_for
from tests.survey.conftest import TEXTS

pytestmark = pytest.mark.usefixtures("one_thread")
NAMES = ("int8_row", "fp8_e4m3_row", "int8_tensor", "nvfp4")
OF_LLAMA = tuple(
    f"model.layers.{block}.{part}"
    for block in (0, 1)
    for part in ("self_attn.q_proj", "self_attn.v_proj", "self_attn.o_proj", "mlp.up_proj", "mlp.down_proj")
)
OF_BERT = ("encoder.layer.0.attention.self.query", "encoder.layer.0.output.dense")


def predicted(model: Model, layers: tuple[str, ...], reference: LossReference) -> dict[str, dict[str, float]]:
    """Layer -> scheme -> the loss that its quantized inputs add."""
    weights = weights_of(model.network, dict.fromkeys(layers))
    schemes = {name: SCHEMES[name] for name in NAMES}
    found = gather(model, reference, weights, ("weight", "fisher"), inputs=schemes)
    return {name: dict(evidence.quantized_inputs) for name, evidence in found.items()}


def fixed_scales(model: Model, layers: tuple[str, ...], scheme: str) -> dict[str, float]:
    """Of each layer, for schemes that have any."""
    if scheme.endswith("_row"):
        return {}
    return find_input_scales(model, {x: x for x in layers}, dict.fromkeys(layers, SCHEMES[scheme]), TEXTS)


@pytest.mark.parametrize(("model", "layers"), [("tiny_llama", OF_LLAMA[:5]), ("tiny_bert", OF_BERT)])
def test_losses_are_sums_over_gradients(model: str, layers: tuple[str, ...], request: Any) -> None:
    """½ Σ (g · Δ)² over tokens and objectives, a sample each, of gradients that autograd gives by zeros that
    are added to the inputs of one layer alone."""
    loaded = load_model(str(request.getfixturevalue(model)), head=True)
    reference = reference_for(loaded, TEXTS)
    found = predicted(loaded, layers, reference)
    for layer in layers:
        zeros: list[Tensor] = []
        seen: list[Tensor] = []

        def add(module: nn.Module, given: tuple[Tensor, ...], zeros: Any = zeros, seen: Any = seen) -> Any:
            zeros[:] = [torch.zeros_like(given[0], requires_grad=True)]
            seen[:] = [given[0].detach()]
            return given[0] + zeros[0]

        hook = loaded.network.get_submodule(layer).register_forward_pre_hook(add)
        sums, samples = dict.fromkeys(NAMES, 0.0), 0
        scales = {name: fixed_scales(loaded, (layer,), name).get(layer) for name in NAMES}
        for one in each_objective(reference):
            (gradient,) = torch.autograd.grad(one.scalar, zeros, retain_graph=one.again)
            samples += one.samples
            for name in NAMES:
                error = quantized_inputs(seen[0], SCHEMES[name], scales[name]) - seen[0]
                sums[name] += float((gradient * error).sum(-1).square().sum()) / 2
        hook.remove()
        assert found[layer] == pytest.approx(
            {name: total / samples for name, total in sums.items()}, rel=1e-4
        )


def test_losses_are_those_of_single_layers(llama: Model) -> None:
    """Predicted beside measured, with the inputs of one layer quantized: in order, and of the right size."""
    reference = reference_for(llama, TEXTS * 8)
    found = predicted(llama, OF_LLAMA, reference)
    pairs = []
    for scheme in NAMES:
        for layer, scale in (fixed_scales(llama, OF_LLAMA, scheme) or dict.fromkeys(OF_LLAMA)).items():

            def rounded(module: nn.Module, given: tuple[Tensor, ...], of: Any = (scheme, scale)) -> Tensor:
                return quantized_inputs(given[0], SCHEMES[of[0]], of[1])

            hook = llama.network.get_submodule(layer).register_forward_pre_hook(rounded)
            pairs.append((found[layer][scheme], reference.measure(llama.network).value))
            hook.remove()
    told, true = map(torch.tensor, zip(*pairs, strict=True))
    assert spearmanr(told, true)[0] > 0.9
    assert float((told / true).median()) == pytest.approx(1, abs=0.25)


@pytest.fixture(scope="module")
def survey(tiny_llama: Path, tmp_path_factory: pytest.TempPathFactory) -> Survey:
    """Of the tiny Llama, by the command."""
    folder = tmp_path_factory.mktemp("surveys")
    (folder / "t.txt").write_text("\n".join(TEXTS))
    command = [
        "survey",
        str(tiny_llama),
        "--text",
        str(folder / "t.txt"),
        "--schemes",
        "int4_group64,int8_row",
    ]
    command += ["--inputs", "int8_row,nvfp4", "--out", str(folder / "s.jsonl")]
    assert main([*command, "--json"]) == 0
    return load_survey(folder / "s.jsonl")


def test_a_survey_has_the_losses(survey: Survey) -> None:
    """Of linear layers and the head, none of the table of embeddings, by the schemes that were asked for."""
    assert survey.head.inputs == ("int8_row", "nvfp4")
    for layer in survey.linear:
        assert tuple(layer.inputs) == (() if layer.is_table else survey.head.inputs), layer.name
        assert layer.is_table or 0 < layer.inputs["int8_row"] < layer.inputs["nvfp4"]


BAD = [
    ("--inputs int4_row", "inputs are quantized by int8_row, "),
    ("--inputs int8_row --signal weight", "quantized inputs add to a predicted loss, and these signals"),
]


@pytest.mark.parametrize(("options", "words"), BAD, ids=[options for options, _ in BAD])
def test_bad_inputs_of_a_survey_are_one_line(
    options: str, words: str, tiny_llama: Path, tmp_path: Path, capsys: Any
) -> None:
    """What was wrong; nothing is written."""
    command = ["survey", str(tiny_llama), "--out", str(tmp_path / "s.jsonl"), *options.split()]
    assert main(command) == 2 and not list(tmp_path.iterdir())
    assert capsys.readouterr().err.strip().splitlines()[-1].startswith(f"error: {words}")
