"""Surveys and recipes in files: what is written is read, and what is no survey is refused in words."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from explorer.models.files import role_of
from explorer.models.kinds import depth_of
from explorer.sources.base import TensorInfo
from explorer.survey import (
    ModelRecipe,
    Role,
    Survey,
    frontier,
    fused_groups,
    kind_of,
    load_survey,
    recipe_of,
    rows,
)
from explorer.survey.rows import MOST_BYTES, MOST_LINE, line_of


def write(survey: Survey, path: Path) -> list[str]:
    lines = [line_of(survey.head), *(line_of(layer) for layer in survey.layers)]
    path.write_text("".join(lines), encoding="utf-8")
    return lines


def test_a_survey_survives_its_file(made_up: Survey, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """To the digits that are kept; a file whose last line was cut off is one that was stopped."""
    path = tmp_path / "s.jsonl"
    lines = write(made_up, path)
    found = load_survey(path)
    assert found.head == made_up.head and found.complete and len(found.linear) == 22
    assert [x.name for x in found.layers] == [x.name for x in made_up.layers]
    assert frontier(found).at(4.5).schemes == frontier(made_up).at(4.5).schemes
    monkeypatch.setattr(rows, "MOST_NUMBERS", 100)
    with pytest.raises(ValueError, match="more than 100 numbers"):
        load_survey(path)
    monkeypatch.undo()
    path.write_text("".join(lines)[:-20], encoding="utf-8")
    stopped = load_survey(path)
    assert not stopped.complete and len(stopped.layers) == len(made_up.layers) - 1
    with pytest.raises(ValueError, match="22 of 23"):
        frontier(stopped)
    with path.open("wb") as file:  # anybody may upload one, and it is parsed whole
        file.truncate(MOST_BYTES + 1)
    with pytest.raises(ValueError, match="16,777,216"):
        load_survey(path)


BROKEN = [
    ("", "empty"),
    ("hello\n", "line 1"),
    ("[1]\n", "no survey"),
    ('{"schemes":[],"version":99}\n', "version 99; version 1"),
    ('{"schemes":[],"version":1}\n', "line 1.*model"),
    ("HEAD\n{}\n", "line 2.*name"),
    ("HEAD\nLAYER\nLAYER\n", "twice"),
    ("HEAD\nNAN\n", "number from 0"),
    ("HEAD\nLACKS\n", "lacks"),
    ("HEAD\nNEGATIVE\n", "number from 0"),
    ("HEAD\nEMPTY\n", "from 1 to"),
    ("HEAD\nLISTED\n", "from 1 to"),
    ("HEAD\n" + "{}\n" * 20_001, "20,001 layers"),
    ("\n" * 40_001, "40,000 lines"),
    ("HEAD\n" + "[" * (MOST_LINE + 1) + "\n", "1,048,576 characters"),
    ("DEFAULT\n", "'<b>'"),
    ("COUNT\n", "parameters"),
    ("HEAD\nFOLDS\n", "9 folds.*at most 8"),
    ("HEAD\nNAME\n", "at most 1000 characters"),
    ("HEAD\nDTYPE\n", "a dtype of more than 100"),
    ("HEAD\nKIND\n", "kind '<b>'.*query"),
    ("HEAD\nDEEP\n", "from 0 to 19,999"),
    ("HEAD\nSIGNAL\n", "first line"),
    ("SCHEMES\n", "201 schemes.*200"),
]


@pytest.mark.parametrize(("text", "words"), BROKEN, ids=[words for _, words in BROKEN])
def test_what_is_no_survey_is_said(made_up: Survey, tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "s.jsonl"
    head, _, layer, *_ = write(made_up, path)
    odd = json.loads(layer)
    lacks = {**odd, "costs": {"weight": odd["costs"]["weight"]}}
    odd["costs"]["fisher_diagonal"]["nvfp4"] = float("nan")
    for word, line in (
        ("HEAD", head),
        ("DEFAULT", json.dumps({**json.loads(head), "default": "<b>"})),
        ("COUNT", json.dumps({**json.loads(head), "parameters": -1})),
        ("EMPTY", json.dumps({**json.loads(layer), "shape": [0, 64]})),
        ("LISTED", json.dumps({**json.loads(layer), "shape": [64, -64], "bits": {}})),
        ("FOLDS", json.dumps({**json.loads(layer), "folds": [0.5] * 9})),
        ("NAME", json.dumps({**json.loads(layer), "name": "a" * 1001})),
        ("DTYPE", json.dumps({**json.loads(layer), "dtype": f"INT4 · {'9' * 400} bits"})),
        ("KIND", json.dumps({**json.loads(layer), "kind": "<b>"})),
        ("DEEP", json.dumps({**json.loads(layer), "depth": 20_000})),
        ("SIGNAL", json.dumps({**json.loads(layer), "bits": {}, "costs": {"weight": {"a": 1}}})),
        ("SCHEMES", json.dumps({**json.loads(head), "schemes": [str(i) for i in range(201)]})),
        ("NEGATIVE", json.dumps({**json.loads(layer), "depth": -5})),
        ("LAYER", layer),
        ("NAN", json.dumps(odd)),
        ("LACKS", json.dumps(lacks)),
    ):
        text = text.replace(word, line.rstrip())
    path.write_text(text, encoding="utf-8")
    with pytest.raises(ValueError, match=words):
        load_survey(path)


def test_a_recipe_survives_its_file(made_up: Survey, tmp_path: Path) -> None:
    recipe = recipe_of(made_up, frontier(made_up).at(4.5))
    recipe.save(tmp_path / "r.json")
    assert ModelRecipe.load(tmp_path / "r.json") == recipe
    assert sum(recipe.counts.values()) == 21 and not list(tmp_path.glob(".*"))


def test_what_is_no_recipe_is_said(made_up: Survey, tmp_path: Path) -> None:
    recipe = json.loads(recipe_of(made_up, frontier(made_up).at(4.5)).to_json())
    changes = (
        ({"explorer_recipe": 2}, "version"),
        ({"layers": {"a": "int4_nope"}}, "a: .*int4_nope"),
        ({"layers": {"a": "nvfp4+nope"}}, "a: .*'nope'"),
        ({"layers": {}}, "at least one"),
        ({"bits": -1}, "from 0"),
        ({"layers": 3}, "layers"),
        ({"layers": {"a" * 1001: "nvfp4"}}, "more than 1000 characters"),
        ({"layers": {str(i): "nvfp4" for i in range(20_001)}}, "20,001 layers; at most 20,000"),
    )
    texts = [("[]", "no recipe"), ("{", "no JSON"), (" " * (MOST_BYTES + 1), "16,777,216")]
    for text, fact in [*texts, *((json.dumps({**recipe, **change}), fact) for change, fact in changes)]:
        (tmp_path / "r.json").write_text(text, encoding="utf-8")
        with pytest.raises(ValueError, match=fact):
            ModelRecipe.load(tmp_path / "r.json")


@pytest.mark.parametrize("name", ["\x1b[2J", "x" * 100_000, "a\nb"], ids=["escape", "long", "line"])
def test_a_refusal_is_one_line_for_a_terminal(name: str, made_up: Survey, tmp_path: Path) -> None:
    """Whatever the file has as its version, or as the name of a layer."""
    head, *_, layer = map(json.loads, write(made_up, tmp_path / "s.jsonl"))
    recipe = json.loads(recipe_of(made_up, frontier(made_up).at(4.5)).to_json())
    wrong = {**layer, "name": name, "bits": {name: 1}}
    texts = [(load_survey, json.dumps({**head, "version": name}), "")]
    texts += [(load_survey, json.dumps(head), json.dumps(wrong))]
    texts += [(ModelRecipe.load, json.dumps({**recipe, "layers": {name: "nope"}}), "")]
    for load, *lines in texts:
        (tmp_path / "f").write_text("\n".join((*lines, "")), encoding="utf-8")
        with pytest.raises(ValueError, match="f") as refused:
            load(tmp_path / "f")
        assert str(refused.value).isprintable() and len(str(refused.value)) < 1000


NAMES = [
    ("encoder.layer.3.attention.self.query", Role.LINEAR, "query", 3),
    ("encoder.layer.3.attention.output.dense", Role.LINEAR, "attention output", 3),
    ("encoder.layer.3.intermediate.dense", Role.LINEAR, "up", 3),
    ("encoder.layer.3.output.dense", Role.LINEAR, "down", 3),
    ("model.layers.10.self_attn.o_proj", Role.LINEAR, "attention output", 10),
    ("model.layers.10.mlp.gate_proj", Role.LINEAR, "gate", 10),
    ("model.layers.1.block_sparse_moe.experts.7.w2", Role.LINEAR, "down", 1),
    ("blk.0.attn_v", Role.LINEAR, "value", 0),
    ("blk.0.ffn_down", Role.LINEAR, "down", 0),
    ("embeddings.word_embeddings", Role.EMBEDDING, "embeddings", None),
    ("token_embd", Role.EMBEDDING, "embeddings", None),
    ("model.embed_tokens", Role.EMBEDDING, "embeddings", None),
    ("transformer.wte", Role.EMBEDDING, "embeddings", None),
    ("transformer.wpe", Role.OTHER_EMBEDDING, "other", None),
    ("position_embd", Role.OTHER_EMBEDDING, "other", None),
    ("bert.embeddings.token_type_embeddings", Role.OTHER_EMBEDDING, "other", None),
    ("lm_head", Role.HEAD, "head", None),
    ("output", Role.HEAD, "other", None),
    ("gpt_neox.embed_out", Role.HEAD, "head", None),
    ("h.0.mlp.output", Role.LINEAR, "other", 0),
    ("pooler.dense", Role.LINEAR, "other", None),
    ("encoder.layer.3.attention.output.LayerNorm", None, "other", 3),
]  # fmt: skip


def test_names_say_what_a_layer_is() -> None:
    """If this fails, an embedding is quantized as a layer, or fused layers get schemes of their own."""
    for name, role, kind, depth in NAMES:
        assert role_of(TensorInfo(f"{name}.weight", (8, 8), "F32")) is role, name
        assert (kind_of(name), depth_of(name)) == (kind, depth), name
        assert role_of(TensorInfo(f"{name}.weight", (8,), "F32")) is None
        assert role_of(TensorInfo(f"{name}.weight", (8, 8), "I32")) is None


def test_fused_layers_of_one_block_are_a_group() -> None:
    names = [
        f"blk.{i}.{n}" for i in range(2) for n in ("attn_q", "attn_k", "attn_output", "ffn_up", "ffn_gate")
    ]
    groups = fused_groups(names)
    assert groups[:3] == [
        ("blk.0.attn_q", "blk.0.attn_k"),
        ("blk.0.attn_output",),
        ("blk.0.ffn_up", "blk.0.ffn_gate"),
    ]
    assert len(groups) == 6
