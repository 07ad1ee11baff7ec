"""From torch modules to ONNX graphs and a folder."""
