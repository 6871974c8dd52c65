"""Whole models: capture the inputs of layers, quantize every linear layer, evaluate the result."""
