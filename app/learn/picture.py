"""The first chapter: a photograph as a tensor, before and after a scheme that the visitor picks.

The numbers and the small cuts come with the page; the whole pictures are asked for at ``ADDRESS`` when the
chapter is on the screen, quantized once and kept.
"""

from __future__ import annotations

import base64
from dataclasses import dataclass
from functools import cache

from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from torch import Tensor

from app.parts import html
from app.serving import addresses
from explorer.analysis.report import compare
from explorer.core.quantize import quantize
from explorer.figures.picture import Cut, figures_of, one_block, outlines, picture_uri
from explorer.schemes import Scheme
from explorer.sources import load_sample

ON_LOAD = "explorer.picture.start(element)"
SAMPLE, ORIGINAL = "portrait", "original"
CUT = Cut(160, 192, 40, 64)
"""An eye behind glasses: bright and dark within one block."""
FIRST = "int4_tensor"
"""The scheme that is chosen at first."""
KEPT_SECONDS = 3600


@dataclass(frozen=True)
class Sight:
    """A scheme of the chapter: how its button calls it, and what there is to see. ``seen`` holds glossary
    terms in angle brackets."""

    scheme: str
    label: str
    seen: str


SIGHTS = (
    Sight(
        "int8_tensor",
        "INT8, one scale",
        "Nothing to see: 128 evenly spaced greys are finer than the eye. The other half of the codes is "
        "negative, and no pixel is.",
    ),
    Sight(
        "fp8_e4m3_tensor",
        "FP8, one scale",
        "Nothing to see either, with fewer decibels: FP8's steps grow with brightness, so that the dark "
        "jacket is kept more finely than the white cap.",
    ),
    Sight(
        "int4_tensor",
        "INT4, one scale",
        "One <scale> leaves eight greys for everything: the wall breaks into bands, and what was dark in the "
        "jacket rounds to black.",
    ),
    Sight(
        "int4_group32",
        "INT4, 32 a scale",
        "With a scale for every 32 pixels the jacket has its folds again, as a dark <block> has fine steps. "
        "A block that holds white and black still loses its dark part.",
    ),
    Sight(
        "int4_group32_asym",
        "INT4, zero point",
        "With a <zero point> all sixteen codes lie between the block's darkest and its brightest pixel, none "
        "below zero: nearly the decibels of FP8, with little more than half its bits.",
    ),
    Sight(
        "mxfp4",
        "MXFP4",
        "The scale of 32 pixels is a power of two. What is brighter than it reaches is cut off, so the "
        "wall and the face turn flat, with streaks where the power changes from block to block.",
    ),
    Sight(
        "nvfp4",
        "NVFP4",
        "16 pixels a scale, and a scale of eight bits that reaches the block's brightest pixel: nothing is "
        "cut off. FP4's wide steps near the top of each block remain, as fine streaks on the wall.",
    ),
    Sight(
        "int2_group32",
        "INT2, 32 a scale",
        "Two bits have one positive level besides zero, at half of the block's largest: the picture is in "
        "two greys a block, at half its brightness. Half of the codes wait for negative pixels.",
    ),
    Sight(
        "int2_group32_asym",
        "INT2, zero point",
        "The same two bits and a zero point: four greys from the block's least to its largest. The face "
        "is back for six hundredths of a bit.",
    ),
    Sight(
        "binary_row",
        "Binary, a row a scale",
        "One bit keeps the sign, and every pixel has the same: each row becomes its mean. Weights, half of "
        "them negative, fare better.",
    ),
)


@dataclass(frozen=True)
class Shown:
    """A sight with its measured figures: ``note`` in bits and dB, ``outlines`` of the blocks in the cut and
    of one ``block``, and the cut's pixels as ``thumbnail``, a data URI."""

    sight: Sight
    name: str
    note: str
    outlines: str
    block: str
    thumbnail: str


def picture() -> str:
    """The chapter's markup; ``explorer.picture.start`` brings it to life."""
    rows, columns = _portrait().shape
    return html.render(
        "learn/picture",
        shown=shown(),
        first=FIRST,
        cut=CUT,
        rows=rows,
        columns=columns,
        original=ORIGINAL,
        thumbnail=_thumbnail(_portrait()),
    )


@cache
def shown() -> tuple[Shown, ...]:
    """Every scheme of the chapter on the portrait, as the core measures it."""
    x = _portrait()
    found = []
    for sight in SIGHTS:
        scheme = Scheme.parse(sight.scheme)
        q = quantize(x, scheme)
        restored = q.dequantize()
        found.append(
            Shown(
                sight,
                scheme.label,
                figures_of(compare(x, q, restored)),
                outlines(q, CUT),
                one_block(q, CUT),
                _thumbnail(restored),
            )
        )
    return tuple(found)


@cache
def drawn(name: str) -> bytes:
    """The whole picture as a PNG, under the scheme ``name`` of the chapter or as it was (``ORIGINAL``).
    ``KeyError`` for another name."""
    if name == ORIGINAL:
        return _png(_portrait())
    if name not in {sight.scheme for sight in SIGHTS}:
        raise KeyError(name)
    return _png(quantize(_portrait(), Scheme.parse(name)).dequantize())


def answer(request: Request) -> Response:
    """A picture of the chapter; 404 for any other."""
    try:
        picture_bytes = drawn(request.path_params["name"])
    except KeyError:
        return addresses.unknown()
    kept = {"cache-control": f"public, max-age={KEPT_SECONDS}"}
    return Response(picture_bytes, media_type="image/png", headers=kept)


ROUTE = Route("/picture/{name}.png", answer)


def _thumbnail(values: Tensor) -> str:
    return picture_uri(CUT.of(values))


def _png(values: Tensor) -> bytes:
    return base64.b64decode(picture_uri(values).split(",")[1])


@cache
def _portrait() -> Tensor:
    return load_sample(SAMPLE).values
