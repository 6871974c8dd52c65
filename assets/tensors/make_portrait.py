"""Makes portrait.safetensors beside this file: an official photograph of Grace Hopper as grey values.

    pip install --no-deps matplotlib==3.11.2 pillow
    python assets/tensors/make_portrait.py

The file holds ``grey`` (uint8 [600, 512], 0 black, 255 white), made of the colours by the weights of
ITU-R BT.601.
"""

from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from safetensors.torch import save_file

HERE = Path(__file__).parent
NOTICE = {
    "source": "official portrait of Grace M. Hopper, US Navy; grace_hopper.jpg of matplotlib 3.11.2",
    "license": "public domain: a work of the US federal government",
}


def main() -> None:
    found = find_spec("matplotlib")
    if found is None or found.origin is None:
        raise SystemExit("install matplotlib first, as above")
    photograph = Path(found.origin).parent / "mpl-data" / "sample_data" / "grace_hopper.jpg"
    grey = torch.from_numpy(np.array(Image.open(photograph).convert("L")))
    save_file({"grey": grey}, HERE / "portrait.safetensors", NOTICE)
    print("grey", tuple(grey.shape))


if __name__ == "__main__":
    main()
