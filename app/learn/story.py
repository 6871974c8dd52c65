"""The guided story: one row of numbers, and what a block, a range, a zero point and a format do to it."""

from __future__ import annotations

import json
from dataclasses import dataclass

from app.learn.playground import format_facts
from app.parts.section import Section

ROW = (
    0.31, -0.52, 0.13, 0.74, -0.27, -0.91, 0.45, 0.06, -0.63, 0.22, -0.11, 0.58, -0.38, 0.83, -0.19, -0.7,
    0.36, 0.02, -0.46, 0.95, -0.3, 0.17, 0.66, -0.85, 0.49, -0.05, -0.57, 0.28, 0.78, -0.34, 0.1, -0.24,
)  # fmt: skip
"""The row before its outlier is set: 32 numbers within ± 1, as weights of one layer lie."""
OUTLIER_AT = 11
"""Index of the number that the visitor drags."""


@dataclass(frozen=True)
class StoryChoice:
    """One option of a step. ``changes`` are fields of the scheme of ``assets/story-arithmetic.js``."""

    label: str
    changes: dict[str, object]


@dataclass(frozen=True)
class Step:
    """One step: its text, its initial scheme, and the visitor's controls.

    sliders: names of ``assets/story.js``, with their first values. choices: the options, of which ``chosen``
    is taken first. reach: the lowest and the highest number that the picture shows. title, text and lesson
    hold glossary terms in angle brackets.
    """

    title: str
    text: str
    scheme: dict[str, object]
    sliders: dict[str, float]
    choices: tuple[StoryChoice, ...]
    lesson: str
    reach: tuple[float, float] = (-1.3, 8.6)
    chosen: int = 0


_INT4 = {"format": "int4", "scaleFormat": "float16", "block": 32, "asymmetric": False, "clip": 1}
STEPS = (
    Step(
        "One row, one scale",
        "Thirty-two numbers are stored in a few bits each. The largest sets the <scale>; every number "
        "then takes the nearest of the evenly spaced levels. Fewer bits, fewer levels.",
        _INT4, {"outlier": 0.58},
        tuple(StoryChoice(f"INT{bits}", {"format": f"int{bits}"}) for bits in (2, 3, 4, 5, 6, 8)),
        "Each bit halves the steps, which is worth about 6 dB of <SQNR>.",
        (-1.15, 1.15), 2,
    ),
    Step(
        "One outlier",
        "Now a single number grows: drag the marked one. The scale must reach it, so the levels move apart, "
        "and the other thirty-one numbers have to share the few that are left.",
        _INT4, {"outlier": 6.0},
        (),
        "The <outlier> itself is stored well. The other numbers lose: many round to zero.",
    ),
    Step(
        "A smaller block",
        "Give each part of the row its own scale. The outlier then spoils only its own <block>; each "
        "scale costs 16 bits, shared by fewer numbers.",
        _INT4, {"outlier": 6.0},
        tuple(StoryChoice(f"{n} a scale" if n < 32 else "One scale", {"block": n}) for n in (32, 16, 8, 4)),
        "Smaller blocks buy accuracy with <bits per element>; groups of 32 to 128 are usual for weights.",
        chosen=2,
    ),
    Step(
        "A better range",
        "Or leave the outlier out: let the range end earlier, and whatever lies beyond takes its end. "
        "<Clipping> costs one large error and makes all the small ones smaller.",
        _INT4, {"outlier": 1.6, "clip": 1.0},
        tuple(StoryChoice(f"INT{bits}", {"format": f"int{bits}"}) for bits in (2, 3, 4)),
        "The fewer the bits, the more it pays. <calibration> by <MSE> tries many ends and keeps the best, "
        "which the curve marks.",
        (-1.3, 3.1),
        chosen=1,
    ),
    Step(
        "A zero point",
        "Behind some activation functions nearly all numbers have one sign. A <symmetric> range wastes half "
        "its codes on the other side; a <zero point> moves the range to where the numbers are.",
        _INT4, {"outlier": 0.58, "shift": 0.8},
        (
            StoryChoice("With a zero point", {"asymmetric": True}),
            StoryChoice("Symmetric", {"asymmetric": False}),
        ),
        "Zero keeps an exact code, so padding and masked values stay zero.",
        (-1.0, 2.3),
    ),
    Step(
        "Other levels, other scales",
        "Levels need not be evenly spaced. FP4 and <NF4> put more of them near zero, and <NVFP4> and "
        "<MXFP4> shrink the scale itself to eight bits, so that small blocks cost little.",
        _INT4 | {"block": 16},
        {"outlier": 3.0},
        (
            StoryChoice("NVFP4",
                        {"format": "float4_e2m1fn", "scaleFormat": "float8_e4m3fn", "perTensor": True}),
            StoryChoice("MXFP4", {"format": "float4_e2m1fn", "exponent": True, "block": 32}),
            StoryChoice("NF4", {"format": "nf4", "scaleFormat": "float32"}),
            StoryChoice("FP4, FP16 scales", {"format": "float4_e2m1fn"}),
            StoryChoice("INT4", {}),
        ),
        "Which wins depends on the numbers: drag the outlier. NVFP4's 32 bits for the whole tensor weigh "
        "on so short a row; a layer pays 4.5.",
    ),
)  # fmt: skip


def story_data() -> dict[str, object]:
    """The row, the steps' schemes and the formats that they name, as JSON for ``assets/story.js``."""
    steps = [
        {
            "scheme": step.scheme,
            "sliders": step.sliders,
            "reach": step.reach,
            "chosen": step.chosen,
            "choices": [{"label": c.label, "changes": c.changes} for c in step.choices],
        }
        for step in STEPS
    ]
    text = json.dumps(steps)
    formats = {f["name"]: f for f in format_facts() if f'"{f["name"]}"' in text}
    return {"row": ROW, "outlierAt": OUTLIER_AT, "steps": steps, "formats": formats}


SECTION = Section(
    name="story",
    title="A guided story",
    follows=("step",),
    script="explorer.story",
    shares={"steps": STEPS, "data": story_data()},
)
