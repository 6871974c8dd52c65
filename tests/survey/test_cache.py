"""A cache of keys and values that is stored by schemes: what attention reads, what that costs, and recipes
that say so.
"""

from __future__ import annotations

import json
from dataclasses import replace
from html import unescape
from pathlib import Path

import pytest
import safetensors
import torch
from safetensors.torch import load_file

from app.parts.cache_capture import capture
from app.sections import sizes
from app.state.query import Query
from app.state.selection import matrix_of
from explorer import quantize
from explorer.analysis.cache import (
    BOTH,
    CONTEXT,
    KEYS,
    PIECE,
    VALUES,
    CacheLayer,
    CachePlan,
    CacheShape,
    check_scheme,
)
from explorer.checkpoints import EXPORTS
from explorer.checkpoints.model import ModelFolder
from explorer.cli import main
from explorer.methods.recipe import Recipe
from explorer.models.capture import Model, load_model
from explorer.models.inputs import quantized_inputs
from explorer.schemes import Scheme
from explorer.survey import ModelRecipe, cache
from explorer.survey.apply import against_cache, card_of
from explorer.survey.assemble import assemble
from explorer.survey.cache import (
    SCHEMES,
    CachedNetwork,
    CacheSurvey,
    captured_cache,
    fixed_scales,
    labelled_cache,
    restored,
    shape_of,
)
from explorer.survey.check import RECIPE, WEIGHTS_ALONE, check_recipe
from explorer.survey.loss import reference_for
from tests.checkpoints.writing import write_checkpoint
from tests.survey.conftest import HELD_OUT, tokenizer_of
from tests.survey.conftest import SEEN as TEXTS

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = "the cat sleeps on the warm roof the train was late again salt lowers the roof the cat was late"
WIDE = "int4~1x64~asymmetric~float16~minmax"
BY_CHANNEL, BY_TOKEN = "int4~4x1~asymmetric~float16~minmax", "int4~1x16~asymmetric~float16~minmax"


@pytest.fixture(autouse=True)
def pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Texts have several."""
    monkeypatch.setattr(cache, "PIECE", 4)


@pytest.mark.parametrize("recent", [0, 3, 5])
def test_attention_reads_old_tokens_from_their_codes_and_recent_ones_exactly(recent: int) -> None:
    """If this fails, a loss is that of another cache: whole pieces are restored once they lie before the
    recent tokens, block by block as if they had been quantized alone."""
    schemes = Scheme.parse(BY_CHANNEL), Scheme.parse(BY_TOKEN)
    layer = cache._RestoredLayer(CachePlan(*schemes, recent))
    generator = torch.Generator().manual_seed(0)
    exact = [torch.randn(1, 2, 15, 16, generator=generator) for _ in range(2)]
    for start in range(0, 15, 4):
        read = layer.update(*(states[:, :, start : start + 4].clone() for states in exact))
        old = max(0, start - recent) // 4 * 4
        for got, states, scheme in zip(read, exact, schemes, strict=True):
            assert torch.equal(got[:, :, old:], states[:, :, old : start + 4])
            for piece in range(0, old, 4):
                for head in range(2):
                    want = quantize(states[0, head, piece : piece + 4], scheme).dequantize()
                    assert torch.equal(got[0, head, piece : piece + 4], want), (start, piece)


def test_a_cache_that_nothing_is_done_to_costs_nothing(llama: Model) -> None:
    """If this fails, running a text in pieces moves its logits: positions or masks are wrong."""
    survey = CacheSurvey(llama, [WORDS])
    row = survey.row(CachePlan(), survey.loss(CachePlan()))
    assert row.kl < 1e-6 and row.same_top == 1.0
    assert (row.part, row.scheme, row.bits, row.bytes_a_token) == (BOTH, "as it is", 16.0, 2 * 32 * 2 * 2)
    assert row.context_bytes == CONTEXT * row.bytes_a_token


def test_no_token_sees_what_follows_it(llama: Model) -> None:
    """Blocks go along tokens: if this fails, a scale is made of tokens that are not there yet."""
    network = CachedNetwork(llama.network, CachePlan(Scheme.parse(BY_CHANNEL), Scheme.parse(BY_CHANNEL)))
    ids = llama.tokenizer(WORDS, return_tensors="pt").input_ids
    other = ids.clone()
    other[0, 10] = 5
    with torch.no_grad():
        one, two = network(ids).logits[0], network(other).logits[0]
    assert torch.equal(one[:10], two[:10]) and not torch.equal(one[10], two[10])


def test_parts_cost_more_at_fewer_bits_and_less_with_recent_tokens(llama: Model) -> None:
    """If this fails, a part is not stored as its plan says, or its bits are not those of its scheme."""
    survey = CacheSurvey(llama, [WORDS])
    coarse, fine = (Scheme.parse(BY_TOKEN.replace("int4", fmt)) for fmt in ("int2", "int8"))
    both = [CachePlan(coarse, coarse, 64), CachePlan(coarse, fine)]
    rows = [*survey.rows([coarse, fine]), *(survey.row(plan, survey.loss(plan)) for plan in both)]
    assert [row.part for row in rows] == [KEYS, VALUES] * 2 + [BOTH] * 2
    assert all(few.kl > 10 * more.kl for few, more in zip(rows[:2], rows[2:4], strict=True))
    assert rows[4].kl < 1e-6 and rows[5].scheme == f"{coarse} / {fine}"
    bits = [coarse.bits_per_element((4, 32)).total, fine.bits_per_element((4, 32)).total]
    assert [row.bits for row in rows] == [bits[0]] * 2 + [bits[1]] * 2 + [bits[0], sum(bits) / 2]
    assert rows[5].bytes_a_token == pytest.approx(2 * 32 * sum(bits) / 8)


@pytest.mark.parametrize(("name", "channels"), [("nvfp4", 80), ("mxfp4", 96), (WIDE, 80), (WIDE, 64)])
def test_a_block_ends_where_its_head_does(name: str, channels: int) -> None:
    """If this fails, heads share scales in models whose heads are not 64 channels wide: each head is stored
    as it is alone, up to the scale of the whole tensor, and bits are those of its own blocks."""
    scheme = Scheme.parse(name)
    states = torch.randn(1, 3, 32, channels, generator=torch.Generator().manual_seed(0))
    states[:, 1] *= 100
    together = restored(states, scheme)
    if scheme.scale is not None and not scheme.scale.per_tensor:
        assert torch.equal(together[:, 1:2], restored(states[:, 1:2], scheme))
        assert torch.equal(together[:, 2:], restored(states[:, 2:], scheme))
    bits = CacheShape.uniform(1, 3, channels).bits(KEYS, scheme)
    assert bits == scheme.bits_per_element((3 * 32, channels)).total


def test_blocks_that_tokens_cannot_be_appended_to_are_refused() -> None:
    """If this fails, a scale covers tokens that come later, or the command fails without options."""
    for name in ("int8_column", "int4_tensor", "int4~64x1~symmetric~float16~minmax"):
        with pytest.raises(ValueError, match=r"token by token|fixed scales"):
            check_scheme(Scheme.parse(name))
    for name in (*SCHEMES, "int8_row", "fp8_e4m3_row"):
        check_scheme(Scheme.parse(name))
    assert PIECE == 32


def test_a_fixed_scale_is_of_all_calibration_tokens_and_rounds_each_token_as_it_comes(llama: Model) -> None:
    """If this fails, FP8 with the scales of a checkpoint is measured by others, or a piece late."""
    scheme = Scheme.parse("fp8_e4m3_tensor")
    plan = CachePlan(scheme, scheme)
    scales, seen = fixed_scales(llama, plan, [WORDS]), captured_cache(llama, [WORDS])
    assert scales == {
        name: float(seen[name].abs().amax() / 448) for name in seen if not name.endswith("rotary")
    }
    layer = cache._RestoredLayer(plan, {KEYS: 0.5, VALUES: 0.25})
    states = torch.randn(1, 2, 6, 16, generator=torch.Generator().manual_seed(0))
    for read, scale in zip(layer.update(states, states), (0.5, 0.25), strict=True):
        assert torch.equal(read, quantized_inputs(states, scheme, scale))
    assert fixed_scales(llama, CachePlan(values=Scheme.parse("int8_row"))) == {}
    with pytest.raises(ValueError, match="scales"):
        CachedNetwork(llama.network, plan)
    with pytest.raises(ValueError, match="Hadamard"):
        CachedNetwork(llama.network, PLANS["by token"])


@pytest.mark.parametrize("kind", ["Mistral", "Gemma2"])
def test_a_sliding_window_is_masked_with_a_cache_and_bounds_its_memory(kind: str, tmp_path: Path) -> None:
    """If this fails, a model with a window shorter than the text is measured with attention beyond it, or its
    memory grows with the context where it does not. Attention is made strong, so that one token more is
    seen in the logits; it is written out, as Gemma 2 caps it."""
    import transformers

    torch.manual_seed(3)
    sizes = {"vocab_size": 64, "hidden_size": 64, "intermediate_size": 64, "num_hidden_layers": 2}
    sizes |= {"num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 16, "sliding_window": 6}
    tokens = {"pad_token_id": 0, "bos_token_id": None, "eos_token_id": None}
    config = getattr(transformers, f"{kind}Config")(
        **sizes, **tokens, initializer_range=0.4, attn_implementation="eager"
    )
    getattr(transformers, f"{kind}ForCausalLM")(config).save_pretrained(tmp_path)
    tokenizer_of(tmp_path)
    model = load_model(str(tmp_path), head=True)
    model.network.set_attn_implementation("eager")  # type: ignore[operator]
    ids = model.tokenizer(WORDS, return_tensors="pt").input_ids
    assert ids.shape[1] > 3 * 6
    with torch.no_grad():
        want, got = model.network(ids).logits, CachedNetwork(model.network, CachePlan())(ids).logits
        cut = model.network(ids[:, 1:]).logits  # without the first token, which a window leaves behind
        model.network.config.sliding_window = 64
        wide = CachedNetwork(model.network, CachePlan())(ids).logits
        model.network.config.sliding_window = 6
    assert torch.allclose(got, want, rtol=1e-4, atol=1e-4)
    assert not torch.allclose(wide[0, -1], want[0, -1], rtol=0.1, atol=0.1)
    windows = {"Mistral": (6, 6), "Gemma2": (6, None)}[kind]
    shape = shape_of(model, [WORDS])
    assert shape == CacheShape.uniform(2, 2, 16, windows)
    stated = json.loads((tmp_path / "config.json").read_text())
    assert CacheShape.of_config(stated) == CacheShape.of_config({"text_config": stated}) == shape
    for change in (
        {"model_type": "falcon"},
        {"num_hidden_layers": "2"},
        {"num_hidden_layers": 1 << 40},
        {"hidden_size": 1, "head_dim": None},
        {"layer_types": ["linear_attention"] * 2},
    ):
        assert CacheShape.of_config(stated | change) is None
    assert torch.allclose(cut[0, -1], want[0, -1], rtol=1e-3, atol=1e-3) is (kind == "Mistral")
    plan = CachePlan()
    few, more = (shape.bytes_of(plan, tokens) for tokens in (100, 200))
    assert more - few == {"Mistral": 0, "Gemma2": 100 * 2 * 2 * 16 * 2}[kind]


def test_keys_and_values_are_captured(llama: Model) -> None:
    """If this fails, an opened cache is not what attention reads. The first token's position is 0: rotary
    embedding leaves its key as it is, and turns the others' without changing their length."""
    found = captured_cache(llama, [WORDS, WORDS], tokens=24)
    assert list(found) == [
        f"layers.{i}.{n}" for i in (0, 1) for n in ("keys", "keys_before_rotary", "values")
    ]
    for i in (0, 1):
        after, before = found[f"layers.{i}.keys"], found[f"layers.{i}.keys_before_rotary"]
        assert after.shape == before.shape == found[f"layers.{i}.values"].shape == (24, 32)
        assert torch.equal(after[0], before[0]) and not torch.equal(after[1], before[1])
        assert torch.allclose(
            after.view(24, 2, 16).norm(dim=2), before.view(24, 2, 16).norm(dim=2), rtol=1e-4
        )


def test_the_page_opens_keys_and_values(tiny_llama: Path, tiny_bert: Path) -> None:
    """If this fails, the page opens another layer than was chosen, or offers two equal tensors as keys before
    and after rotary embedding."""
    assert "takes 8.39 MB in 16 bits" in str(sizes.view(Query({"model": str(tiny_llama)}))["said"])
    asked = {"model": str(tiny_llama), "cachetext": "\n\n" + WORDS, "cachetokens": "6"}
    *_, shown = capture(Query(asked))
    first = json.loads(unescape(str(shown["cached"]).partition('data-set="')[2].partition('"')[0]))
    opened = Query(first).record
    assert matrix_of(opened).values.shape == (6, 32)
    assert (opened.source, opened.file_tensor) == ("file", "keys of layer 1, after rotary")
    with safetensors.safe_open(first["file"], "pt") as file:
        parts = ("keys of layer {}, after rotary", "keys of layer {}, before rotary", "values of layer {}")
        assert {*file.keys()} == {part.format(layer) for part in parts for layer in (0, 1)}
    one = torch.ones(2, 2)
    same = dict.fromkeys(("layers.0.keys", "layers.0.keys_before_rotary", "layers.0.values"), one)
    assert list(labelled_cache(same)) == ["keys of layer 0", "values of layer 0"]
    for wrong, words in (
        ({"model": str(tiny_bert)}, "predicts no tokens"),
        ({"model": ""}, "in the bar"),
        ({"cachetokens": "1"}, "2 to"),
    ):
        with pytest.raises(ValueError, match=words):
            list(capture(Query(asked | wrong)))


def test_memory_of_a_cache_by_its_context() -> None:
    """Llama-3-8B has 128 KiB a token in 16 bits."""
    shape, exact = CacheShape.uniform(32, 8, 128), CachePlan()
    by_channel, cast = Scheme.parse("int4~32x1~asymmetric~float16~minmax"), Scheme.parse("fp8_e4m3_cast")
    token = 128 * 1024
    assert shape.bytes_a_token(exact) == token
    assert shape.bytes_of(exact, 1000) == 1000 * token
    assert shape.bytes_of(CachePlan(cast, cast), 1000) == 1000 * token / 2
    bits = by_channel.bits_per_element((32, 1024)).total
    assert shape.bytes_a_token(CachePlan(by_channel, by_channel)) == token * bits / 16
    wider = CacheShape((CacheLayer((1, 192), (1, 128)),))  # keys wider than values
    assert wider.bytes_a_token(CachePlan(cast, None)) == 192 + 256


@pytest.mark.parametrize(
    ("name", "recent", "tokens", "exact"),
    [
        ("int2~32x1~asymmetric~float16~minmax", 0, 95, 31),
        ("int2~32x1~asymmetric~float16~minmax", 0, 96, 0),
        ("int2~32x1~asymmetric~float16~minmax", 5, 96, 32),
        ("int2~8x1~asymmetric~float16~minmax", 0, 95, 31),
        ("int8_row", 0, 95, 31),
        ("int8_row", 40, 95, 63),
        ("fp8_e4m3_tensor", 0, 95, 0),
        ("fp8_e4m3_tensor", 40, 95, 40),
        ("int8_row", 100, 95, 95),
    ],
)
def test_tokens_that_stay_exact_are_counted(name: str, recent: int, tokens: int, exact: int) -> None:
    """If this fails, a cache looks smaller than the one whose loss is measured: tokens of a piece that is not
    complete are in 16 bits, and in a window, those of the block that its first token lies in are held."""
    scheme = Scheme.parse(name)
    shape, plan = CacheShape.uniform(1, 1, 64), CachePlan(scheme, None, recent)
    coded = (tokens - exact) * shape.bits(KEYS, scheme) + exact * 16
    assert shape.bytes_of(plan, tokens) == pytest.approx((coded + tokens * 16) * 64 / 8)
    windowed = CacheShape.uniform(1, 1, 64, (50,))
    height = scheme.block[0] or 1
    held = tokens - exact - (tokens - 50) // height * height
    coded = max(held, 0) * shape.bits(KEYS, scheme) + min(exact, 50) * 16
    assert windowed.bytes_of(plan, tokens) == pytest.approx((coded + 50 * 16) * 64 / 8)


def test_the_command_measures_schemes_and_writes_the_cache(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If this fails, `explorer cache` does not do what its help says."""
    out, text = tmp_path / "cache.safetensors", tmp_path / "text.txt"
    text.write_text(" ".join([WORDS] * 3))
    options = ["--text", str(text), "--schemes", f"int8_row,{BY_TOKEN}", "--json"]
    assert main(["cache", str(tiny_llama), *options, "--out", str(out)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["part"] for row in said["rows"]] == [KEYS, VALUES] * 2
    assert [row["scheme"] for row in said["rows"]] == ["int8_row"] * 2 + [BY_TOKEN] * 2
    assert said["rows"][2]["kl"] > 0
    assert said["bytes_a_token"] == 256 and (said["texts"], said["tokens"]) == (1, 60)
    with safetensors.safe_open(out, "pt") as file:
        assert set(file.keys()) == set(captured_cache(load_model(str(tiny_llama), head=True), [WORDS]))


LAYERS = {f"model.layers.0.mlp.{name}_proj": Recipe.parse("int8_row") for name in ("up", "gate")}
FIXED = CachePlan.parse("fp8_e4m3_tensor/fp8_e4m3_tensor")
SCALES = {f"layers.{i}.{part}": 0.5 for i in range(4) for part in (KEYS, VALUES)}
PLANS = {
    "fixed": FIXED,
    "cast": CachePlan.parse("fp8_e4m3_cast/fp8_e4m3_cast"),
    "by token": CachePlan.parse("int8_row/int4~1x16~asymmetric~float16~minmax", 2, True),
    "values alone": CachePlan.parse("/int8_row"),
}


def with_cache(plan: CachePlan, where: str = "m") -> ModelRecipe:
    return ModelRecipe(where, None, "", LAYERS, cache=plan)


def test_a_recipes_file_holds_its_cache() -> None:
    """What is read is what was written; a file without a cache, as older ones are, is read as before."""
    for plan in PLANS.values():
        chosen = with_cache(plan)
        assert ModelRecipe.from_json(chosen.to_json()) == chosen
        old = json.loads(chosen.to_json())
        del old["cache"]
        assert ModelRecipe.from_json(json.dumps(old)) == replace(chosen, cache=None)
    old["cache"] = {"keys": "int8_column", "values": "", "recent": 0, "rotated": False}
    with pytest.raises(ValueError, match="int8_column"):
        ModelRecipe.from_json(json.dumps(old))


@pytest.mark.parametrize("name", ["fixed", "values alone"])
def test_a_check_runs_the_cache_of_the_recipe(
    name: str, llama: Model, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The loss is that of the quantized network with the cache; that of weights alone is without it."""
    monkeypatch.setattr(cache, "PIECE", 2)
    plan = PLANS[name]
    check = check_recipe(with_cache(plan), llama, HELD_OUT, calibration=TEXTS)
    network = assemble(llama, LAYERS, TEXTS).network
    cached = CachedNetwork(network, plan, fixed_scales(llama, plan, TEXTS))
    reference = reference_for(llama, HELD_OUT)
    assert [row.what for row in check.rows[:2]] == [RECIPE, WEIGHTS_ALONE] and check.cache == plan.described
    assert check.rows[0].loss.value == pytest.approx(reference.measure(cached).value, rel=1e-6)
    assert check.rows[1].loss.value == pytest.approx(reference.measure(network).value, rel=1e-6)
    assert check.rows[0].loss.value > check.rows[1].loss.value


def test_an_encoder_has_no_cache_to_check(tiny_bert: Path) -> None:
    """If this fails, a cache is accepted that nothing reads."""
    layers = {"encoder.layer.0.output.dense": Recipe.parse("int8_row")}
    with pytest.raises(ValueError, match="no keys and values"):
        check_recipe(ModelRecipe("m", None, "", layers, cache=FIXED), load_model(str(tiny_bert)), TEXTS)
    assert EXPORTS["vllm"].against_cache(ModelFolder(tiny_bert), FIXED)


@pytest.mark.parametrize("target", ["compressed-tensors", "vllm"])
@pytest.mark.parametrize("name", ["fixed", "cast"])
def test_a_checkpoint_says_how_its_cache_is_stored(
    name: str, target: str, llama: Model, tiny_llama: Path, tmp_path: Path
) -> None:
    """config.json describes FP8 by a fixed scale, and the scales lie beside the projections."""
    plan, out = PLANS[name], tmp_path / "out"
    scales = fixed_scales(llama, plan, TEXTS)
    write_checkpoint(target, tiny_llama, LAYERS, out, cache=plan, cache_scales=scales)
    said = json.loads((out / "config.json").read_text())["quantization_config"]["kv_cache_scheme"]
    assert said == {"num_bits": 8, "type": "float", "strategy": "tensor", "symmetric": True, "dynamic": False}
    tensors = load_file(out / "model.safetensors")
    for layer in range(2):
        for part, suffix in ((KEYS, "k_scale"), (VALUES, "v_scale")):
            stored = tensors[f"model.layers.{layer}.self_attn.{suffix}"]
            want = scales.get(f"layers.{layer}.{part}", 1.0)
            assert stored.shape == (1,) and float(stored) == pytest.approx(want, rel=1e-7)


def test_the_reader_of_a_checkpoint_stores_keys_and_values_as_the_check_did(
    llama: Model, tiny_llama: Path, tmp_path: Path
) -> None:
    """Logits of transformers with compressed-tensors are those of the network that a check runs; with scales
    so large that they round what is small to nothing, they are others."""
    from transformers import AutoModelForCausalLM

    ids = llama.tokenizer(TEXTS[0], return_tensors="pt").input_ids
    scales, network = fixed_scales(llama, FIXED, TEXTS), assemble(llama, LAYERS, TEXTS).network
    for name, factor in (("as found", 1.0), ("large", 2.0**12)):
        out, own = tmp_path / name, {key: scale * factor for key, scale in scales.items()}
        options = {"cache": FIXED, "cache_scales": own, "verified": True}
        write_checkpoint("compressed-tensors", tiny_llama, LAYERS, out, **options)
        opened = AutoModelForCausalLM.from_pretrained(out, dtype=torch.float32)
        with torch.no_grad():
            want, exact = CachedNetwork(network, FIXED, own)(ids).logits, network(ids).logits
            assert torch.allclose(opened(ids).logits, want, rtol=1e-4, atol=1e-4)
        assert not torch.allclose(want, exact, rtol=1e-3, atol=1e-3)


@pytest.mark.parametrize("target", EXPORTS)
def test_a_checkpoint_that_cannot_say_the_cache_is_refused(target: str, tiny_llama: Path) -> None:
    """If this fails, a checkpoint is silent on a cache, or tells an engine one that it does not mean."""
    for name, plan in PLANS.items():
        says = target in ("compressed-tensors", "vllm") and name in ("fixed", "cast")
        chosen = with_cache(plan, str(tiny_llama))
        why = against_cache(chosen, target, tiny_llama)
        assert (why == "") is says and plan.described in card_of(chosen, against_cache=why)
        if not says:
            with pytest.raises(ValueError, match="keys and values"):
                write_checkpoint(target, tiny_llama, LAYERS, Path("none"), cache=plan)
    if target == "compressed-tensors":  # packed zero points are opened without a cache alone
        packed = {name: Recipe.parse("int4_group32_asym") for name in LAYERS}
        with pytest.raises(ValueError, match="symmetric"):
            write_checkpoint(target, tiny_llama, packed, Path("none"), cache=FIXED, cache_scales=SCALES)


def test_commands_take_a_cache(
    files: dict[str, str], tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """`check` measures the recipe's cache or another by `--cache`, and `apply` writes it with the loss
    measured so."""
    chosen, out, text = str(tmp_path / "r.json"), tmp_path / "out", files["seen"]
    made = ["recipe", files["survey"], "--bits", "9", "--schemes", "int8_row", "--out", chosen]
    assert main(made) == 0
    replace(ModelRecipe.load(chosen), cache=FIXED).save(chosen)
    other = CachePlan.parse("/int8_row", 3)
    for more, plan in ((["--calibration", text], FIXED), (["--cache", "/int8_row", "--recent", "3"], other)):
        capsys.readouterr()
        assert main(["check", chosen, "--text", text, *more, "--json"]) == 0
        assert json.loads(capsys.readouterr().out)["cache"] == plan.described
    to = ["--to", "compressed-tensors", "--out", str(out), "--measure", "--text", text, "--calibration", text]
    assert main(["apply", chosen, *to]) == 0
    assert FIXED.described in (out / "README.md").read_text()
