"""Transformers models that visitors run on text, loaded once."""

from __future__ import annotations

from app import limits
from app.state.gpu_lock import room
from app.state.memo import Memo
from app.state.selection import model_source
from explorer import SourceError
from explorer.core.backend import work_device
from explorer.models.capture import Model, load_model
from explorer.sources.models import folder_stamp

_MODELS = Memo[Model](1 << 30)


def runnable_model(where: str, head: bool = False, revision: str = "") -> Model:
    """The model in a folder or under a Hub id, with ``head`` a causal one with its head. ``SourceError`` for
    one larger than may be run here, before it is loaded, and for a folder where folders may not be named."""
    size = 4 * check_runnable(where, revision)
    bounds, device = limits.current().sources, work_device().type
    key = (where.strip(), revision, folder_stamp(where, bounds), device, bounds, head)

    def load() -> Model:
        with room(size):
            return load_model(where, revision or None, device, bounds, head=head)

    return _MODELS.get(key, load, _bytes_of)


def check_runnable(where: str, revision: str = "") -> int:
    """How many weights a model has. ``SourceError`` for one that is larger than may be run here, and for one
    that may not be opened."""
    source = model_source(where, revision)
    weights, most = sum(info.elements for info in source.infos), limits.current().model_weights
    if weights > most:
        raise SourceError(f"{where} has {weights:,} weights; here a model of up to {most:,} can be run")
    return weights


def _bytes_of(model: Model) -> int:
    return sum(p.nbytes for p in model.network.parameters())
