"""Matrix products on this CPU, by kernels that are kept elsewhere: torch, ONNX Runtime, llama.cpp."""
