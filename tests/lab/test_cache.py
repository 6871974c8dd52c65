"""The recorded table of caches: what is run, and what docs/models.md says of it."""

from __future__ import annotations

from explorer.analysis.cache import KEYS, VALUES
from lab.cache import (
    BITS,
    CHANNEL,
    PLAIN,
    ROTATED,
    TOKEN,
    CacheCost,
    alone_table,
    integer,
    kivi,
    pairs_table,
    plans,
    recorded_cache,
    supported,
)


def cost(keys: str, values: str, *losses: float, rotated: bool = False) -> CacheCost:
    kl = sum(losses) / len(losses)
    return CacheCost("m", keys, values, 0, rotated, kl, kl / 2, 2 * kl, 0.9, 4.5, len(losses), 96, losses)


def test_every_scheme_is_run_for_keys_and_for_values_alone() -> None:
    """If this fails, a column of the table is empty."""
    alone = [(p.text.strip("/"), p.rotated, p.keys is not None) for p in plans() if not (p.keys and p.values)]
    every = [(name, False) for name in PLAIN] + [(name, True) for name in ROTATED]
    wanted = [(*one, keys) for one in every for keys in (True, False)]
    assert sorted(alone) == sorted(wanted) and len(plans()) == len(alone) + 6


def test_what_kivi_found_is_said_where_the_difference_is_beyond_its_interval() -> None:
    """Text by text: keys by channel lose less at INT4; at INT2 the difference is within its interval."""
    rows = [
        cost(integer("int4", CHANNEL), "", 0.1, 0.2, 0.3),
        cost(integer("int4", TOKEN), "", 0.3, 0.4, 0.5),
        cost(integer("int2", CHANNEL), "", 0.1, 0.9, 0.2),
        cost(integer("int2", TOKEN), "", 0.9, 0.1, 0.25),
    ]
    assert supported(rows, KEYS) == "at INT4" and supported(rows, VALUES) == "nowhere"
    assert "0.2 ± " in kivi(rows) and "Values" not in kivi(rows)
    assert "not recorded yet" in kivi([]) and "not recorded yet" in alone_table([]) + pairs_table([])


def test_the_recorded_table_is_whole() -> None:
    """If this fails, docs/models.md has a dash where a number was measured, or a row twice."""
    rows = recorded_cache().rows
    found = [(row.keys, row.values, row.recent, row.rotated) for row in rows]
    assert len(set(found)) == len(found)
    names = (("" if s is None else str(s) for _, s in plan.parts) for plan in plans())
    wanted = [(*pair, plan.recent, plan.rotated) for pair, plan in zip(names, plans(), strict=True)]
    assert set(found) == set(wanted) and BITS
    assert alone_table(rows).count("–") == 2 * (len(PLAIN) - len(ROTATED))
    assert "32 tokens of a channel" in pairs_table(rows)
