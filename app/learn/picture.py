"""A photograph as a tensor, before and after a scheme that the visitor picks.

The view shows the chosen scheme's words and blocks. Whole pictures are asked for at ``/picture/NAME.png``,
quantized once and kept; the enlarged cuts are cuts of these.
"""

from __future__ import annotations

import base64
import threading
from dataclasses import dataclass
from functools import cache

from markupsafe import Markup
from starlette.requests import Request
from starlette.responses import Response
from starlette.routing import Route
from torch import Tensor

from app.parts import html
from app.parts.controls import Select
from app.parts.section import Section, Shown
from app.serving import addresses
from app.state.query import Query
from explorer.core.quantize import QuantizedTensor, quantize
from explorer.figures.picture import Cut, one_block, outlines, picture_uri
from explorer.schemes import Scheme
from explorer.sources import load_sample

SAMPLE, ORIGINAL = "portrait", "original"
ROWS, COLUMNS = 600, 512
CUT = Cut(160, 192, 40, 64)
"""An eye behind glasses: bright and dark within one block."""
KEPT_SECONDS = 3600
_DRAWING = threading.Lock()


@dataclass(frozen=True)
class Sight:
    """A scheme of the section: the label of its button, its bits and SQNR as measured on the photograph, and
    what there is to see. ``seen`` holds glossary terms in angle brackets."""

    scheme: str
    label: str
    note: str
    seen: str


SIGHTS = (
    Sight("int8_tensor", "INT8, one scale", "8 bits, 44.7 dB",
          "Nothing to see: 128 evenly spaced greys are finer than the eye. The other half of the codes is "
          "negative, and no pixel is."),
    Sight("fp8_e4m3_tensor", "FP8, one scale", "8 bits, 32.1 dB",
          "Nothing to see either, with fewer decibels: FP8's steps grow with brightness, so that the dark "
          "jacket is kept more finely than the white cap."),
    Sight("int4_tensor", "INT4, one scale", "4 bits, 18.9 dB",
          "One <scale> leaves eight greys for everything: the wall breaks into bands, and what was dark in "
          "the jacket rounds to black."),
    Sight("int4_group32", "INT4, 32 a scale", "4.5 bits, 24.7 dB",
          "With a scale for every 32 pixels the jacket has its folds again, as a dark <block> has fine "
          "steps. A block that holds white and black still loses its dark part."),
    Sight("int4_group32_asym", "INT4, zero point", "4.625 bits, 31.7 dB",
          "With a <zero point> all sixteen codes lie between the block's darkest and its brightest pixel, "
          "none below zero: nearly the decibels of FP8, with little more than half its bits."),
    Sight("mxfp4", "MXFP4", "4.25 bits, 18.1 dB",
          "The scale of 32 pixels is a power of two. What is brighter than it reaches is cut off, so the "
          "wall and the face turn flat, with streaks where the power changes from block to block."),
    Sight("nvfp4", "NVFP4", "4.5 bits, 21.1 dB",
          "16 pixels a scale, and a scale of eight bits that reaches the block's brightest pixel: nothing "
          "is cut off. FP4's wide steps near the top of each block remain, as fine streaks on the wall."),
    Sight("int2_group32", "INT2, 32 a scale", "2.5 bits, 7.0 dB",
          "Two bits have one positive level besides zero, at half of the block's largest: the picture is in "
          "two greys a block, at half its brightness. Half of the codes wait for negative pixels."),
    Sight("int2_group32_asym", "INT2, zero point", "2.562 bits, 17.9 dB",
          "The same two bits and a zero point: four greys from the block's least to its largest. The face "
          "is back for six hundredths of a bit."),
    Sight("binary_row", "Binary, a row a scale", "1.062 bits, 4.7 dB",
          "One bit keeps the sign, and every pixel has the same: each row becomes its mean. Weights, half "
          "of them negative, fare better."),
)  # fmt: skip


def _button(sight: Sight) -> Markup:
    """Lay out the content of a button: the cut, the label and the numbers."""
    return Markup(
        '<svg viewBox="{}" aria-hidden="true"><image href="picture/{}.png" width="{}" height="{}"></image>'
        "</svg><b>{}</b><small>{}</small>"
    ).format(CUT.view_box, sight.scheme, COLUMNS, ROWS, sight.label, sight.note)


CHOSEN = Select(
    key="picture",
    label="Scheme",
    usual="int4_tensor",
    chips=True,
    options={sight.scheme: _button(sight) for sight in SIGHTS},
)


def view(query: Query) -> Shown:
    """Show the photograph by the chosen scheme: its words, and its blocks in an enlarged cut."""
    chosen = CHOSEN.of(query)
    (sight,) = (sight for sight in SIGHTS if sight.scheme == chosen)
    q = rounded(chosen)
    after = Markup(
        '<img class="after" src="picture/{}.png" width="{}" height="{}" alt="{}" decoding="sync">'
        '<span class="side right" aria-hidden="true">{}</span>'
    ).format(chosen, COLUMNS, ROWS, q.scheme.label, sight.label)
    seen = html.render(
        "seen", sight=sight, label=q.scheme.label, cut=CUT, rows=ROWS, columns=COLUMNS,
        edges=outlines(q, CUT), block=one_block(q, CUT),
    )  # fmt: skip
    return {"after": after, "seen": seen}


@cache
def rounded(name: str) -> QuantizedTensor:
    """Quantize the photograph by one of ``SIGHTS``; ``KeyError`` for another name."""
    if name not in CHOSEN.offered():
        raise KeyError(name)
    return quantize(_portrait(), Scheme.parse(name))


@cache
def drawn(name: str) -> bytes:
    """Draw the whole picture as a PNG, by one of ``SIGHTS`` or as it was (``ORIGINAL``). ``KeyError`` for
    another name."""
    values = _portrait() if name == ORIGINAL else rounded(name).dequantize()
    return base64.b64decode(picture_uri(values).split(",")[1])


def answer(request: Request) -> Response:
    """Answer with a picture of the section; with 404 for any other."""
    try:
        with _DRAWING:  # who asks for it meanwhile waits, and does not draw it as well
            picture_bytes = drawn(request.path_params["name"])
    except KeyError:
        return addresses.unknown()
    kept = {"cache-control": f"public, max-age={KEPT_SECONDS}"}
    return Response(picture_bytes, media_type="image/png", headers=kept)


@cache
def _portrait() -> Tensor:
    return load_sample(SAMPLE).values


ROUTE = Route("/picture/{name}.png", answer)
SECTION = Section(
    name="picture",
    title="A picture",
    follows=(),
    controls=(CHOSEN,),
    view=view,
    script="explorer.divider",
    shares={"cut": CUT, "rows": ROWS, "columns": COLUMNS},
)
