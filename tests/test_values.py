"""Rows of tables and results are values: they cannot be changed after they were made.

If these fail, a visitor's change of a row, or of a result that is kept, is another visitor's too.
"""

from __future__ import annotations

import ast
import dataclasses
import importlib
from collections.abc import Mapping
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[1]
MUTABLE = {
    "explorer/methods/gptq.py:_Memo": "Hessians and factors of inputs that stay the same, kept",
    "explorer/analysis/report.py:Sums": "sums of a tensor that comes in slices",
    "explorer/core/lowering.py:Lowered": "plans of launches, kept",
    "explorer/cpu/llama.py:_Tensors": "tensors, opened when they are asked for",
    "explorer/gpu/quantize.py:Output": "made in every call: frozen it would take 0.4 µs more of a few",
    "explorer/models/folds.py:_Seen": "layers that were traced so far",
    "explorer/survey/evidence.py:_Dealt": "texts that were dealt so far",
}
"""Data classes that are not frozen, nearly all as they are filled while they are used."""


def data_classes() -> dict[str, bool]:
    """Every data class of the library as "file:class", and whether it is frozen."""
    found: dict[str, bool] = {}
    for path in sorted((ROOT / "explorer").rglob("*.py")):
        text = path.read_text(encoding="utf-8")
        for node in ast.walk(ast.parse(text)) if "@dataclass" in text else ():
            for decorator in node.decorator_list if isinstance(node, ast.ClassDef) else ():
                words = ast.unparse(decorator)
                if words.startswith("dataclass"):
                    where = path.relative_to(ROOT).as_posix()
                    found[f"{where}:{node.name}"] = "frozen=True" in words  # type: ignore[attr-defined]
    return found


def test_what_may_change_is_named() -> None:
    """All other data classes are frozen; one that is added is frozen, or gives its reason here."""
    classes = data_classes()
    assert {name for name, frozen in classes.items() if not frozen} == set(MUTABLE)
    assert len(classes) > 200, "they are not found"


REGISTRIES = ["formats", "schemes", "methods", "checkpoints.targets", "products.gemms"]


@pytest.mark.parametrize("module", REGISTRIES)
def test_rows_of_tables_are_values(module: str) -> None:
    """Of every registry: no field of a row can be set."""
    names = vars(importlib.import_module(f"explorer.{module}"))
    tables = [table for table in names.values() if isinstance(table, Mapping)]
    rows = [row for table in tables for row in table.values() if dataclasses.is_dataclass(row)]
    assert rows
    for row in rows:
        with pytest.raises(dataclasses.FrozenInstanceError):
            setattr(row, dataclasses.fields(row)[0].name, None)
