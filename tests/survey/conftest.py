"""Surveys to choose from, made up or of tiny models."""

from __future__ import annotations

import random

import pytest

from explorer.survey import Head, Layer, Role, Survey, depth_of, kind_of

PARTS = (
    "self_attn.q_proj",
    "self_attn.k_proj",
    "self_attn.v_proj",
    "self_attn.o_proj",
    "mlp.gate_proj",
    "mlp.up_proj",
    "mlp.down_proj",
)
SCHEMES = ("int2_group64_asym", "int3_group64_asym", "int4_group128_asym", "nvfp4", "mxfp6_e2m3", "int8_row")


@pytest.fixture
def made_up() -> Survey:
    """Three blocks of seven layers, each with costs that fall about fourfold a bit, and not quite
    convexly."""
    draw = random.Random(0)
    sizes = dict(zip(SCHEMES, (2.28, 3.3, 4.16, 4.5, 6.25, 8.04), strict=True))
    layers = [Layer("model.embed_tokens", (1000, 64), "BF16", Role.EMBEDDING, "other", None)]
    for block in range(3):
        for part in PARTS:
            name, shape = f"model.layers.{block}.{part}", (draw.choice((64, 128)), 64)
            worth = 10 ** draw.uniform(-4, -1)
            fisher = {s: worth * 4**-b * draw.uniform(0.6, 1.6) for s, b in sizes.items()}
            weight = {s: 4**-b * shape[0] for s, b in sizes.items()}
            costs = {"weight": weight, "fisher": fisher}
            kind = kind_of(name)
            layers.append(
                Layer(name, shape, "BF16", Role.LINEAR, kind, depth_of(name), 10.0, sizes, costs, worth)
            )
    costs = {"weight": dict.fromkeys(SCHEMES, 1.0), "fisher": dict.fromkeys(SCHEMES, 5.0)}
    layers.append(Layer("lm_head", (1000, 64), "BF16", Role.HEAD, "other", None, 10.0, sizes, costs, 1.0))
    head = Head(
        "made/up",
        None,
        "ab" * 32,
        SCHEMES,
        ("weight", "fisher"),
        "fisher",
        len(layers),
        300_000,
        128_000,
        "next token",
        texts=3,
        tokens=90,
    )
    return Survey(head, tuple(layers))
