"""Sixteen-bit and eight-bit ONNX graphs."""
