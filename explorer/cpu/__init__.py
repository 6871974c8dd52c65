"""Matrix products on this CPU, by the kernels of other libraries: torch, ONNX Runtime, llama.cpp."""
