"""Why mutants survive that change no result, or none that a test should state."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Reason:
    """The reason in words, as the page of docs/ shows it. ``equivalent``: no input has another result, so
    that no test of results can tell; else a test was written since, which the reason names."""

    why: str
    equivalent: bool = False


WHY: dict[tuple[str, str], Reason] = {
    (
        "explorer/schemes/calibrators.py",
        "`return sorted({1.0, *(1 + eps * part for part in (0.5, 1, 2, 4)), 9 / 8, 5 / 4, 3 / 2"
        "})` → `return sorted({1.0, *(1 + eps * part for part in (0.5, 1, 2, 4)), 9 / 8, 5 / 4,"
        " 4 / 2})`",
    ): Reason("a test written since notices it, in `tests/schemes/test_calibrators.py`"),
    (
        "explorer/schemes/text.py",
        "`if ELEMENT_FORMATS.get(parts.format.name) != parts.format:` → `if ELEMENT_FORMATS.get"
        "(parts.format.name) is not parts.format:`",
    ): Reason("a test written since notices it, in `tests/schemes/test_text.py`"),
    (
        "explorer/methods/low_rank.py",
        "`_, sizes, directions = torch.linalg.svd(same_gram(activations.double()), full_matrice"
        "s=False)` → `_, sizes, directions = torch.linalg.svd(same_gram(activations.double()), "
        "full_matrices=True)`",
    ): Reason("further directions have no energy, and are not taken", equivalent=True),
    (
        "explorer/methods/gptq.py",
        "`damping = max(damping, 1e-4) * 10` → `damping = max(damping, 1e-4) * 11`",
    ): Reason("a test written since notices it, in `tests/methods/test_gptq.py`"),
    (
        "explorer/schemes/scales.py",
        "`SMALLEST_TENSOR_SCALE = 2.0**-126` → `SMALLEST_TENSOR_SCALE = 2.0**- 125`",
    ): Reason("a test written since notices it, in `tests/schemes/test_schemes.py`"),
    (
        "explorer/methods/gptq.py",
        "`DAMPINGS = (0.003, 0.01, 0.03, 0.1, 0.3, 1.0)` → `DAMPINGS = (0.003, 0.01, 1.03, 0.1, 0.3, 1.0)`",
    ): Reason("a test written since notices it, in `tests/methods/test_gptq.py`"),
    (
        "explorer/checkpoints/onnx_layers.py",
        "`if width is None or width < _SMALLEST_BLOCK or width & (width - 1):` → `if width is N"
        "one or width == _SMALLEST_BLOCK or width & (width - 1):`",
    ): Reason("a test written since notices it, in `tests/checkpoints/test_onnx.py`"),
    (
        "explorer/schemes/calibrators.py",
        "`_AT_ONCE = 1 << 18` → `_AT_ONCE = 2 << 18`",
    ): Reason("parts of a search are larger; memory changes, no result does", equivalent=True),
    (
        "explorer/schemes/table.py",
        '`Row("mxfp6_e3m2", "MXFP6 E3M2 (OCP, FLOOR)", f["float6_e3m2fn"], (1, 32), _FLOOR),` →'
        ' `Row("mxfp6_e3m2", "MXFP6 E3M2 (OCP, FLOOR)", f["float6_e3m2fn"], (1, 31), _FLOOR),`',
    ): Reason("a test written since notices it, in `tests/schemes/test_schemes.py`"),
    (
        "explorer/checkpoints/gguf_vocabulary.py",
        "`scores = [0.0 if type_ != NORMAL else score for score, type_ in zip(scores, types, strict=True)]` "
        "→ "
        "`scores = [0.0 if type_ != NORMAL else score for score, type_ in zip(scores, types, strict=False)]`",
    ): Reason("both lists have an entry for each token", equivalent=True),
    ("explorer/schemes/calibrators.py", "`best = (1.0, 1.0)` → `best = (1.0, 0.0)`"): Reason(
        "the first search moves both ends: nothing reads where it starts", equivalent=True
    ),
    (
        "explorer/schemes/parts.py",
        "`text: str = field(init=False, repr=False, compare=False)` → "
        "`text: str = field(init=False, repr=False, compare=True)`",
    ): Reason("the text is made of fields that are compared", equivalent=True),
    (
        "explorer/methods/__init__.py",
        "`_ACT_ORDER, needs_tokens=True, objective=_OVER_DAMPING, solves=True,` → "
        "`_ACT_ORDER, needs_tokens=True, objective=_OVER_DAMPING, solves=False,`",
    ): Reason("a test written since notices it, in `tests/methods/test_registry.py`"),
    (
        "explorer/schemes/labels.py",
        "`return f\"every {'row' if height == 1 else 'column'} shares\"` → "
        "`return f\"every {'row' if height == 0 else 'column'} shares\"`",
    ): Reason("a test written since notices it, in `tests/schemes/test_schemes.py`"),
    (
        "explorer/schemes/parts.py",
        "`if self.seed is not None and not _is_whole(self.seed, 0, 2**64 - 1):` → "
        "`if self.seed is not None and not _is_whole(self.seed, 0, 2**64 ** 1):`",
    ): Reason("a test written since notices it, in `tests/schemes/test_schemes.py`"),
    (
        "explorer/checkpoints/pairs.py",
        '`return first if len(names) == 1 else f"{first} and {len(names) - 1} more"` → '
        '`return first if len(names) == 1 else f"{first} and {len(names) - 2} more"`',
    ): Reason("a test written since notices it, in `tests/checkpoints/test_diff.py`"),
    (
        "explorer/core/builds.py",
        "`WARM_SHAPES = {torch.float32: ((64, 2048), (64, 4096), (64, 8192), (3, 33)), torch."
        "bfloat16: ((64, 4096),)}` → "
        "`WARM_SHAPES = {torch.float32: (( 63, 2048), (64, 4096), (64, 8192), (3, 33)), torch"
        ".bfloat16: ((64, 4096),)}`",
    ): Reason("compiled ahead of its first use; speed changes, no result does", equivalent=True),
    (
        "explorer/methods/repaired.py",
        "`added = [residue for residue in layer.residues if not isinstance(residue, BiasCorre"
        "ction)]` → "
        "`added = [residue for residue in layer.residues if  isinstance(residue, BiasCorrecti"
        "on)]`",
    ): Reason("a test written since notices it, in `tests/methods/test_repaired.py`"),
    (
        "explorer/checkpoints/diff.py",
        "`return float(torch.where(steps == 0, 0.0, shares).max())` → "
        "`return float(torch.where(steps == 1, 0.0, shares).max())`",
    ): Reason("a test written since notices it, in `tests/checkpoints/test_diff.py`"),
    (
        "explorer/checkpoints/to_bitsandbytes.py",
        "`BLOCKS = (64, 128, 256, 512, 1024, 2048, 4096)` → `BLOCKS = (64, 128, 256, 513, 1024, 2048, 4096)`",
    ): Reason("a test written since notices it, in `tests/checkpoints/test_refusals.py`"),
    (
        "explorer/checkpoints/to_compressed_tensors.py",
        '`format=formats.pop() if len(formats) == 1 else "mixed-precision",` → '
        '`format=formats.pop() if len(formats) < 1 else "mixed-precision",`',
    ): Reason("a test written since notices it, in `tests/checkpoints/test_compressed_tensors.py`"),
}
"""By file and change."""
