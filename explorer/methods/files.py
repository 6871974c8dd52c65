"""A quantized layer in a safetensors file, and back: codes and scales as ``core.file`` writes them, and

    <name>.change<i>.<key>   transform i:  input_divisor [K], or hadamard_signs [K] and hadamard_order [2]
    <name>.<key>             residues:     offset F16 [N, groups]
                                           kept.columns I64 [outliers], kept.weight F16 [N, outliers]
                                           kept.threshold F32 []
                                           low_rank.down F16 [k, K], low_rank.up F16 [N, k]
                                           bias_correction F32 [N], added to the outputs

Each kind of transform or residue names its keys; a row of ``METHODS`` names the kind. The objective and the
snapshots are not stored.
"""

from __future__ import annotations

from pathlib import Path

from explorer.core.file import load_whole, save_quantized
from explorer.methods import METHODS
from explorer.methods.layer import QuantizedLayer, Residue, Transform
from explorer.words import plain


def save_layer(layer: QuantizedLayer, path: str | Path, name: str = "weight") -> None:
    """Write ``layer``. ``load_layer`` restores the same outputs, ``core.file.load`` the same codes."""
    save_quantized(layer.q, path, name, layer.extra_tensors())


def load_layer(path: str | Path) -> QuantizedLayer:
    """Read a file of ``save_layer`` or ``save_quantized``.

    ``ValueError`` for other files, and for tensors that no method here stores.
    """
    q, extra = load_whole(path)
    bases = dict.fromkeys(row.transform for row in METHODS.values() if row.transform is not None)
    transforms: list[Transform] = []
    while True:
        prefix = f"change{len(transforms)}."
        basis = next((kind for kind in bases if all(prefix + name in extra for name in kind.names)), None)
        if basis is None:
            break
        transforms.append(basis.from_tensors({name: extra.pop(prefix + name) for name in basis.names}, q))
    residues: list[Residue] = []
    for kind in dict.fromkeys(row.residue for row in METHODS.values() if row.residue is not None):
        if all(name in extra for name in kind.names):
            residues.append(kind.from_tensors({name: extra.pop(name) for name in kind.names}, q))
    if extra:
        held = plain(", ".join(sorted(extra)), 400)
        raise ValueError(f"{plain(str(path))} holds {held}, which no method here stores")
    return QuantizedLayer(q, tuple(transforms), tuple(residues))
