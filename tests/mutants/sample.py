"""The mutants of a file by cosmic-ray's operators, and a seeded sample of them."""

from __future__ import annotations

import ast
import difflib
import random
from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

Place = tuple[int, int]
"""Line, from 1, and column, from 0."""


@dataclass(frozen=True)
class Mutant:
    """The change that ``operator`` makes at its ``occurrence`` in a file, whose ``path`` is relative to the
    root."""

    path: str
    place: Place
    operator: str
    occurrence: int

    def apply(self, source: str) -> str:
        """The source of the file with the change."""
        from cosmic_ray.mutating import mutate_code
        from cosmic_ray.plugins import get_operator

        changed = mutate_code(source, get_operator(self.operator)(), self.occurrence)
        assert changed is not None, f"{self.operator} has no occurrence {self.occurrence} in {self.path}"
        return changed


def mutants_of(source: str, path: str) -> Iterator[Mutant]:
    """Every mutant of a file with this source."""
    from cosmic_ray.ast import ast_nodes, get_ast
    from cosmic_ray.plugins import get_operator, operator_names

    nodes = list(ast_nodes(get_ast(source)))
    for name in operator_names():
        kind = get_operator(name)
        if kind.arguments():
            continue
        operator, occurrence = kind(), 0
        for node in nodes:
            for start, _ in operator.mutation_positions(node):
                yield Mutant(path, start, name, occurrence)
                occurrence += 1


def sample(root: Path, paths: list[str], seed: int) -> Iterator[Mutant]:
    """Mutants in a seeded order: one of those at a place, each place of all files as likely; without those
    that change no program (``same_program``) or leave none."""
    at: dict[tuple[str, Place], list[Mutant]] = defaultdict(list)
    sources = {path: (root / path).read_text(encoding="utf-8") for path in paths}
    for path, source in sources.items():
        for mutant in mutants_of(source, path):
            at[path, mutant.place].append(mutant)
    draw = random.Random(seed)
    places = sorted(at)
    draw.shuffle(places)
    for place in places:
        mutant = draw.choice(at[place])
        source = sources[mutant.path]
        changed = mutant.apply(source)
        if is_program(changed) and not same_program(source, changed):
            yield mutant


def is_program(source: str) -> bool:
    """False for what Python cannot parse: an operator also meets the asterisk of a signature."""
    try:
        ast.parse(source)
    except SyntaxError:
        return False
    return True


def same_program(before: str, after: str) -> bool:
    """True if two sources differ in blanks and annotations alone, which are not evaluated (``from __future__
    import annotations``)."""
    return _without_annotations(before) == _without_annotations(after)


def _without_annotations(source: str) -> str:
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.arg):
            node.annotation = None
        elif isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            node.returns = None
        elif isinstance(node, ast.AnnAssign):
            node.annotation = ast.Constant(None)
    return ast.dump(tree)


def function_at(source: str, line: int) -> int | None:
    """The first line, that of its first decorator, of the innermost function around ``line``; None outside of
    functions, and where results are kept: only the first test that asked calls such a function."""
    best: tuple[int, bool] | None = None
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            first = min([node.lineno, *(d.lineno for d in node.decorator_list)])
            inside = first <= line <= (node.end_lineno or first)
            if inside and (best is None or first > best[0]):
                best = first, any("cache" in ast.dump(d) for d in node.decorator_list)
    return None if best is None or best[1] else best[0]


def change_in_words(before: str, after: str) -> str:
    """The first line that differs, before and after."""
    lines = list(difflib.unified_diff(before.splitlines(), after.splitlines(), lineterm="", n=0))[2:]
    old = [text for line in lines if line.startswith("-") and (text := line[1:].strip())]
    new = [text for line in lines if line.startswith("+") and (text := line[1:].strip())]
    return f"`{old[0]}` → " + (f"`{new[0]}`" if new else "left out")
