"""Texts: files as users have them, and the tokens that models are run on.

If these fail, a model is calibrated on other text than the file holds, or without the marks of its dialogues.
"""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest
import torch

from explorer.models.capture import Model
from explorer.models.text_files import read_texts
from explorer.models.texts import Texts, texts_of, token_sequences
from explorer.sources.base import SourceError

CHAT = (("user", "the cat"), ("assistant", "sleeps"))
MESSAGES = [{"role": role, "content": said} for role, said in CHAT]
SHARED = [{"from": "human", "value": "the cat"}, {"from": "gpt", "value": "sleeps"}]
PARTS = [{"role": "user", "content": [{"type": "text", "text": "the cat"}]}, MESSAGES[1]]


def lines(*rows: object) -> str:
    return "".join(json.dumps(row) + "\n" for row in rows)


FILES = [
    ("a.txt", "the cat\n\n the roof \n", ("the cat", " the roof "), ()),
    ("a.log", '{"text": "a"}\n', ('{"text": "a"}',), ()),
    ("a.jsonl", lines({"text": "a\nb", "n": 1}, {"text": None}, {"text": "c"}), ("a\nb", "c"), ()),
    ("a.json", json.dumps([{"text": "a", "kind": "code"}]), ("a",), ("code",)),
    ("a.jsonl", lines({"messages": MESSAGES}, {"messages": []}), (CHAT,), ()),
    ("a.jsonl", lines({"conversations": SHARED}, {"conversations": PARTS}), (CHAT, CHAT), ()),
    ("a.jsonl", lines({"prompt": "the cat", "completion": "sleeps"}), (CHAT,), ()),
    ("a.jsonl", lines({"prompt": MESSAGES[:1], "response": MESSAGES[1:]}), (CHAT,), ()),
    ("a.jsonl", lines({"text": "a", "kind": "x"}, {"messages": MESSAGES}), ("a", CHAT), ("x", "")),
    ("a.csv", 'text,kind\n"a, b",prose\n007,code\n,code\n', ("a, b", "007"), ("prose", "code")),
]  # fmt: skip


def test_a_file_holds_these_documents(tmp_path: Path) -> None:
    """By its suffix; blank ones are none."""
    pytest.importorskip("pandas")
    for name, content, documents, kinds in FILES:
        (tmp_path / name).write_text(content)
        assert read_texts(tmp_path / name) == Texts(documents, kinds), content
        assert read_texts(tmp_path / name, None, 8, 3) == Texts(documents, kinds, 8, 3)


def test_parquet_holds_text_and_dialogues(tmp_path: Path) -> None:
    pandas = pytest.importorskip("pandas")
    pytest.importorskip("pyarrow")
    frame = pandas.DataFrame({"text": ["a", None], "messages": [None, MESSAGES], "kind": ["prose", "chat"]})
    frame.to_parquet(tmp_path / "a.parquet")
    assert read_texts(tmp_path / "a.parquet") == Texts(("a", CHAT), ("prose", "chat"))


BAD: list[tuple[str, bytes, str | None, str]] = [
    ("a.txt", b" \n", None, "no line"),
    ("a.txt", b"\xff\xfe", None, "UTF-8"),
    ("a.txt", b"a", "text", "no columns"),
    ("a.jsonl", b"", None, "no row"),
    ("a.jsonl", b'{"text": ""}', None, "no row of text"),
    ("a.jsonl", b'{"text": "a"}\n{"text"', None, "line 2"),
    ("a.jsonl", b'{"a": 1, "b": 2}', None, "a, b: .*--column"),
    ("a.jsonl", b'{"a": "x", "b": 2}', "c", "'c'; it has a, b"),
    ("a.jsonl", b'{"a": "x"}\n{"a": 2}', "a", "row 2: 'a' .* int"),
    ("a.jsonl", b'{"messages": [{"content": "x"}]}', None, "row 1: .* 'messages' has no role"),
    ("a.parquet", b"nothing", None, "pyarrow|could not be read"),
]


def test_what_is_no_file_of_texts_is_said(tmp_path: Path) -> None:
    """In one line, by the file and the row."""
    pytest.importorskip("pandas")
    for name, content, column, words in BAD:
        (tmp_path / name).write_bytes(content)
        with pytest.raises(ValueError, match=words) as refused:
            read_texts(tmp_path / name, column)
        assert str(tmp_path / name) in str(refused.value) and "\n" not in str(refused.value)


def test_the_hash_of_plain_texts_is_that_of_earlier_surveys() -> None:
    """Else a survey that was stopped cannot go on. How texts are read is part of it; kinds are not."""
    texts = ("the cat", "", "the roof")
    want = hashlib.sha256(b"the cat\nthe roof").hexdigest()
    assert texts_of(texts).sha256 == want == Texts(("the cat", "the roof"), ("a", "b")).sha256
    others = [Texts(texts[::2], (), 8), Texts(texts[::2], (), None, 1), Texts((CHAT,)), Texts((CHAT, CHAT))]
    assert len({want, *(one.sha256 for one in others)}) == 5


class Network(torch.nn.Module):
    """Nothing but a config."""

    def __init__(self, positions: int) -> None:
        super().__init__()
        self.config = type("Config", (), {"max_position_embeddings": positions})()


@pytest.fixture
def model() -> Model:
    """A tokenizer of a word a token, <s> before each text, with a chat template."""
    from tokenizers import Tokenizer, models, pre_tokenizers, processors
    from transformers import PreTrainedTokenizerFast

    words = ["<s>", "</s>", "?", *"abcdefghij", "U", "A"]
    tokenizer = Tokenizer(models.WordLevel({word: i for i, word in enumerate(words)}, unk_token="?"))
    tokenizer.pre_tokenizer = pre_tokenizers.WhitespaceSplit()
    tokenizer.post_processor = processors.TemplateProcessing(single="<s> $A", special_tokens=[("<s>", 0)])
    fast = PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, bos_token="<s>", eos_token="</s>", unk_token="?"
    )
    fast.chat_template = (
        "{% for m in messages %}{% if m.role == 'tool' %}{{ raise_exception('no tools') }}{% endif %}"
        "{{ 'U ' if m.role == 'user' else 'A ' }}{{ m.content }} {% endfor %}"
    )
    return Model(Network(16), fast, torch.device("cpu"), "made-up", True)


def said(model: Model, texts: Texts, longest: int = 512) -> list[str]:
    return [model.tokenizer.decode(one.ids) for one in token_sequences(model, texts, longest)]


def test_tokens_are_those_of_the_documents(model: Model) -> None:
    """Cut where positions end; a dialogue by its template, which holds the special tokens; else by role."""
    chat = (("user", "a b"), ("assistant", "c"))
    assert said(model, Texts(("a b", chat))) == ["<s> a b", "U a b A c"]
    assert len(said(model, Texts(("a " * 40,)))[0].split()) == 16
    assert said(model, Texts(("a b c",)), 2) == ["<s> a"]
    with pytest.raises(SourceError, match="the chat template of made-up refuses a text: no tools"):
        said(model, Texts(((("tool", "a"),),)))
    model.tokenizer.chat_template = None
    assert said(model, Texts((chat,))) == ["<s> ? a b ? c"]


def test_documents_are_packed(model: Model) -> None:
    """<s> before each sequence, as this tokenizer sets it, </s> between documents of a kind; the rest at the
    end is dropped, unless its kind would have nothing."""
    documents = ("a b c", "d", "e f g h", "i", "j a b c d e")
    want = ["a b c </s>", "d </s> e f", "g h </s> i", "</s> j a b", "c d e </s>"]
    assert said(model, Texts(documents, (), 5)) == [f"<s> {one}" for one in want]
    assert said(model, Texts(documents[:4], (), 5)) == [f"<s> {one}" for one in want[:3]]
    kinds = ("x", "x", "y", "z", "x")
    packed = token_sequences(model, Texts(documents, kinds, 5), 512)
    assert [(one.kind, len(one.ids)) for one in packed] == [("x", 5), ("y", 5), ("x", 5), ("x", 5), ("z", 3)]
    with pytest.raises(
        SourceError, match="sequences of 17 tokens are longer than the 16 positions of made-up"
    ):
        said(model, Texts(documents, (), 17))
    model.tokenizer.eos_token = None
    with pytest.raises(SourceError, match="has no end token"):
        said(model, Texts(documents, (), 5))


def test_samples_are_drawn_from_all_documents(model: Model) -> None:
    """The first ones of a file that is sorted would be of one kind; the same ones each time."""
    documents = tuple("abcdefghij")
    four, found = Texts(documents, (), None, 4), said(model, Texts(documents, (), None, 4))
    assert len(set(found)) == 4 and found == said(model, four) != said(model, Texts(documents))[:4]
    assert len(said(model, Texts(documents, (), 5, 3))) == 3
    for wrong in ({"sequence_length": 1}, {"samples": 0}, {"kinds": ("a",)}):
        with pytest.raises(ValueError, match=r"1|10"):
            Texts(documents, **wrong)  # type: ignore[arg-type]
