"""A cache of keys and values that is stored by schemes: what attention reads, and what that costs."""

from __future__ import annotations

import json
from functools import partial
from pathlib import Path

import pytest
import safetensors
import torch

from app.parts.cache_capture import capture_keys_and_values
from app.state.record import Record, next_record
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
from explorer.cli import main
from explorer.models.capture import Model, load_model
from explorer.models.inputs import quantized_inputs
from explorer.models.texts import texts_of
from explorer.schemes import Scheme
from explorer.sources.base import SourceError
from explorer.survey import cache
from explorer.survey.cache import (
    SCHEMES,
    CachedNetwork,
    CacheSurvey,
    captured_cache,
    each_alone,
    fixed_scales,
    labelled_cache,
    restored,
    shape_of,
)
from explorer.survey.run import held_out_texts
from lab import cache as recording
from tests.survey.conftest import tokenizer_of

pytestmark = pytest.mark.usefixtures("one_thread")
WORDS = "the cat sleeps on the warm roof the train was late again salt lowers the roof the cat was late"
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
    (row,) = CacheSurvey(llama, [WORDS]).rows([CachePlan()])
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
    rows = list(
        survey.rows([*each_alone([coarse, fine]), CachePlan(coarse, coarse, 64), CachePlan(coarse, fine)])
    )
    assert [row.part for row in rows] == [KEYS, VALUES] * 2 + [BOTH] * 2
    assert all(few.kl > 10 * more.kl for few, more in zip(rows[:2], rows[2:4], strict=True))
    assert rows[4].kl < 1e-6 and rows[5].scheme == f"{coarse} / {fine}"
    bits = [coarse.bits_per_element((4, 32)).total, fine.bits_per_element((4, 32)).total]
    assert [row.bits for row in rows] == [bits[0]] * 2 + [bits[1]] * 2 + [bits[0], sum(bits) / 2]
    assert rows[5].bytes_a_token == pytest.approx(2 * 32 * sum(bits) / 8)


def test_a_rotation_spreads_a_large_channel() -> None:
    """If this fails, a rotated cache is not rotated back, or not within its heads."""
    states = torch.randn(1, 2, 8, 64, generator=torch.Generator().manual_seed(0))
    states[..., 7] += 30
    scheme = Scheme.parse("int4~1x64~asymmetric~float16~minmax")
    plain, turned = (restored(states, scheme, rotated) - states for rotated in (False, True))
    assert turned.square().sum() < 0.5 * plain.square().sum()
    by_channel = restored(states, Scheme.parse("int4~8x1~asymmetric~float16~minmax")) - states
    assert by_channel.square().sum() < 0.1 * plain.square().sum()
    kept = restored(states, Scheme.parse("fp32"), rotated=True)
    assert torch.allclose(kept, states, rtol=1e-5, atol=1e-4)


@pytest.mark.parametrize("name", ["nvfp4", "mxfp4", "int4~1x64~asymmetric~float16~minmax"])
@pytest.mark.parametrize("channels", [64, 80, 96])
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


@pytest.mark.parametrize("kind", ["Mistral", "Gemma2"])
def test_a_sliding_window_is_masked_with_a_cache_and_bounds_its_memory(kind: str, tmp_path: Path) -> None:
    """If this fails, a model with a window shorter than the text is measured with attention beyond it, or its
    memory grows with the context where it does not. Attention is made strong, so that one token more is
    seen in the logits; it is written out, as Gemma 2 caps it."""
    import transformers

    torch.manual_seed(3)
    config = getattr(transformers, f"{kind}Config")(
        vocab_size=64,
        hidden_size=64,
        intermediate_size=64,
        num_hidden_layers=2,
        num_attention_heads=4,
        num_key_value_heads=2,
        head_dim=16,
        sliding_window=6,
        initializer_range=0.4,
        attn_implementation="eager",
        pad_token_id=0,
        bos_token_id=None,
        eos_token_id=None,
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
    """If this fails, the page cannot show a cache, opens another layer than the one that was chosen, or
    offers two equal tensors as keys before and after rotary embedding."""
    capture = partial(capture_keys_and_values, str(tiny_llama), "")
    *_, shown = capture("model.layers.1.mlp.up_proj.weight", "\n\n" + WORDS, 6)
    (act,) = json.loads(shown.act)
    opened = next_record(Record(), act, shown.file)
    assert matrix_of(opened).values.shape == (6, 32)
    assert (opened.source, opened.file_tensor) == ("file", "keys of layer 1, after rotary")
    with safetensors.safe_open(shown.file, "pt") as file:
        assert sorted(file.keys()) == [
            "keys of layer 0, after rotary",
            "keys of layer 0, before rotary",
            "keys of layer 1, after rotary",
            "keys of layer 1, before rotary",
            "values of layer 0",
            "values of layer 1",
        ]
    one = torch.ones(2, 2)
    same = dict.fromkeys(("layers.0.keys", "layers.0.keys_before_rotary", "layers.0.values"), one)
    assert list(labelled_cache(same)) == ["keys of layer 0", "values of layer 0"]
    (*_, shown), (refused,) = capture_keys_and_values(str(tiny_bert), "", "", "", 6), capture("", "", 1)
    assert shown.status and "2 … 4,096" in refused.status
    assert shown.act == refused.act == "", "an act that stays is done again"


def test_memory_of_a_cache_by_its_context() -> None:
    """If this fails, the size of a long context is wrong: Llama-3-8B has 128 KiB a token in 16 bits."""
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


def test_a_plan_is_read_from_what_it_is_written_as() -> None:
    for text in ("int8_row/nvfp4", "/int8_row", "fp8_e4m3_tensor/"):
        assert CachePlan.parse(text).text == text
    both = Scheme.parse("int8_row"), Scheme.parse("nvfp4")
    assert CachePlan.parse(" int8_row / nvfp4 ", 64, True) == CachePlan(*both, 64, True)


def test_the_command_measures_pairs_and_writes_the_cache(
    tiny_llama: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """If this fails, `explorer cache` does not do what its help says."""
    out, text = tmp_path / "cache.safetensors", tmp_path / "text.txt"
    text.write_text(" ".join([WORDS] * 3))
    pair = "int8~32x1~asymmetric~float16~minmax/int2~1x32~asymmetric~float16~minmax"
    options = ["--text", str(text), "--schemes", "int8_row", "--pairs", pair, "--rotated", "--json"]
    assert main(["cache", str(tiny_llama), *options, "--out", str(out)]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [row["part"] for row in said["rows"]] == [KEYS, VALUES, KEYS, VALUES, BOTH, BOTH]
    assert [row["rotated"] for row in said["rows"]] == [False, False, True, True, False, True]
    assert said["rows"][4]["scheme"] == " / ".join(str(Scheme.parse(one)) for one in pair.split("/"))
    assert said["rows"][4]["kl"] > 0
    assert said["bytes_a_token"] == 256 and (said["texts"], said["tokens"]) == (1, 60)
    with safetensors.safe_open(out, "pt") as file:
        assert set(file.keys()) == set(captured_cache(load_model(str(tiny_llama), head=True), [WORDS]))


def test_without_texts_those_of_the_checks_are_run(llama: Model, tiny_bert: Path) -> None:
    """An encoder has no cache."""
    assert texts_of(CacheSurvey(llama, []).run_on).sha256 == texts_of(held_out_texts(True)).sha256
    assert CacheSurvey(llama, [WORDS]).run_on == [WORDS]
    with pytest.raises(SourceError, match="no tokens"):
        CacheSurvey(load_model(str(tiny_bert)), [WORDS])


def test_a_recorded_row_is_what_the_command_prints(tiny_llama: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """If this fails, the recording of docs/models.md is of other caches or texts than it says."""
    monkeypatch.setattr(recording, "texts", lambda: texts_of([WORDS] * 2))
    first = recording.plans()[:2]
    monkeypatch.setattr(recording, "plans", lambda: first)
    model = load_model(str(tiny_llama), head=True)
    keys, values = recording.run_cache(model)
    name = recording.PLAIN[0]
    assert (keys.keys, keys.values, values.keys, values.values) == (name, "", "", name)
    row = next(CacheSurvey(model, [WORDS] * 2).rows([CachePlan(Scheme.parse(name))]))
    assert keys.kl == row.kl > 0 and keys.texts == len(keys.losses) == 2 and keys.bits == row.bits == 8
