"""Models that write: the original, or the model quantized by a scheme or a recipe, continues a prompt.

    subject = subject_of("path/to/model", recipe)         # or a .gguf file, or a checkpoint's folder
    with open_engine(subject) as engine:                  # .name, .why, .kernels, .held_bytes, .stored_bytes
        with engine.write("The capital of", 64) as text:  # a Writing: tokens as they come, and may be closed
            for token in text:                            # .id, .text, .top (five candidates), .seconds
                print(token.text, end="")
        text.figures                                      # tokens a second of prompt and text, so far

``compare`` finds the first difference of two texts, and the KL divergence at each token of the original's.
Each engine is one class (``ENGINES``): torch runs the network that `explorer check` measures, llama.cpp the
recipe's GGUF file. ``placing.place_linears`` chooses a GPU's products. Two engines share nothing, nor do two
writings of one engine.
"""

from explorer.running.choice import ENGINES, open_engine, open_like
from explorer.running.compare import Comparison, compare
from explorer.running.engine import Engine, Figures, Sampling, Token, TokenCandidate, Told, Writing
from explorer.running.subject import Subject, subject_of

__all__ = [
    "ENGINES",
    "Comparison",
    "Engine",
    "Figures",
    "Sampling",
    "Subject",
    "Token",
    "TokenCandidate",
    "Told",
    "Writing",
    "compare",
    "open_engine",
    "open_like",
    "subject_of",
]  # fmt: skip
