"""Pictures as tensors: a PNG or JPEG as rows x columns of grey values from 0 (black) to 1 (white).

A value is the stored one divided by the largest possible, 255 or, for 16-bit grey, 65,535: linear in what the
file stores, which is not linear in light. Colours become grey by the weights of ITU-R BT.601, .299 red + .587
green + .114 blue, in 8 bits. Transparent pixels lie on white. The orientation of EXIF is applied.
"""

from __future__ import annotations

import warnings
from pathlib import Path
from typing import IO, TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from explorer.progress import Progress, checkpoint
from explorer.sources.base import SourceError, TensorInfo, TensorSource, first_line
from explorer.sources.source_limits import SourceLimits
from explorer.sources.stamped import StampedFile
from explorer.words import plain

if TYPE_CHECKING:
    from PIL import Image

PICTURES = {".png": "PNG", ".jpg": "JPEG", ".jpeg": "JPEG"}
"""Suffix -> Pillow's name of the kind of file."""
_WIDE = "I;16"
"""Pillow's mode of 16-bit grey."""
_ACCEPTED = ("1", "L", "LA", "P", "RGB", "RGBA", _WIDE)
_MODES = "grey, colours (RGB) or a palette, transparent or not"


class PictureFile(TensorSource):
    """One picture as a matrix [rows, columns], called by the file's name; decoded as it is opened."""

    def __init__(self, path: Path, origin: str, limits: SourceLimits) -> None:
        self.origin = origin
        with StampedFile(path, origin).open() as file:
            self._grey, bits = _decoded(file, PICTURES[path.suffix.lower()], origin, limits)
        self._largest = float(2**bits - 1)
        self.infos = (TensorInfo(plain(path.stem), tuple(self._grey.shape), f"{bits}-bit grey"),)

    @property
    def kept_bytes(self) -> int:
        return super().kept_bytes + int(self._grey.nbytes)

    def read_rows(self, info: TensorInfo, rows: int | None, progress: Progress | None) -> Tensor:
        """Return float32 [rows, columns], each value the nearest to stored / largest."""
        values = torch.from_numpy(self._grey[:rows].astype(np.float32))
        return values.div_(self._largest)


def _decoded(file: IO[bytes], kind: str, origin: str, limits: SourceLimits) -> tuple[np.ndarray, int]:
    """Decode to uint8 or uint16 [rows, columns]; second, the bits of a value."""
    image = _opened(file, kind, origin, limits)
    checkpoint()
    from PIL import ImageOps

    try:
        image.load()
        grey = ImageOps.exif_transpose(_grey(image))
    except Exception as error:  # as in ``_opened``
        raise SourceError(f"{origin} is cut short or damaged: {first_line(error)}") from error
    checkpoint()
    if image.mode == _WIDE:
        return np.asarray(grey).astype(np.uint16), 16
    return np.asarray(grey), 8


def _opened(file: IO[bytes], kind: str, origin: str, limits: SourceLimits) -> Image.Image:
    """Open the picture and read its header; ``SourceError`` for a picture that must not be decoded."""
    try:
        from PIL import Image, UnidentifiedImageError
    except ImportError as error:
        raise SourceError(f"{origin}: reading pictures needs Pillow: pip install pillow") from error
    too_many = SourceError(
        f"{origin} has more than {limits.pixels:,} pixels, the limit here; make the picture smaller"
    )
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")  # our own limit is below the one that Pillow warns of
            image = Image.open(file, formats=(kind,))
    except Image.DecompressionBombError:
        raise too_many from None
    except UnidentifiedImageError:
        raise SourceError(f"{origin} is not a {kind} file, whatever its name says") from None
    except Exception as error:  # decoders raise what they like for malformed data
        raise SourceError(f"{origin} is not a readable {kind} file: {first_line(error)}") from error
    if image.width * image.height > limits.pixels:
        raise too_many
    if image.format == "PNG" and getattr(image, "is_animated", False):
        raise SourceError(f"{origin} is animated; accepted are still pictures: save one of its frames")
    if image.mode not in _ACCEPTED:
        what = "the four inks of print (CMYK)" if image.mode == "CMYK" else f"pixels of the kind {image.mode}"
        raise SourceError(f"{origin} holds {what}; accepted are {_MODES}: save it as one of these")
    if image.mode == _WIDE and image.has_transparency_data:
        raise SourceError(f"{origin} has 16 bits and one of its greys transparent; save it without")
    return image


def _grey(image: Image.Image) -> Image.Image:
    """Convert to one value a pixel: mode L, or the mode of 16-bit grey."""
    if image.mode == _WIDE:
        return image
    if not image.has_transparency_data:
        return (image.convert("RGB") if image.mode == "P" else image).convert("L")
    clear = image if image.mode in ("LA", "RGBA") else image.convert("RGBA")
    grey = clear.convert("L")
    grey.paste(255, mask=clear.getchannel("A").point([255 - alpha for alpha in range(256)]))
    grey.info = image.info
    return grey
