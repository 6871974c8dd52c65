"""Training through quantization: layers that quantize as they learn, and what becomes of a real data set and a real model."""
