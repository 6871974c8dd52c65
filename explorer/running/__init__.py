"""Models that write: a prompt continued by the original, or by what a scheme or a recipe makes of it.

    subject = subject_of("path/to/model", recipe)         # or a .gguf file, or a checkpoint's folder
    with open_engine(subject) as engine:                  # .name, .why, .kernels, .held_bytes, .stored_bytes
        with engine.write("The capital of", 64) as text:  # a Writing: tokens as they come, and may be closed
            for token in text:                            # .id, .text, .top (five candidates), .seconds
                print(token.text, end="")
        text.figures                                      # tokens a second of prompt and text, so far

``compare`` says where two texts part, and the KL divergence at each token of the original's.
Each engine is one class (``ENGINES``): torch runs the network that `explorer check` measures, llama.cpp the
recipe's GGUF file. A GPU's products have their place in ``placing.place_linears``. Nothing is shared between
two engines, nor between two writings of one.
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
