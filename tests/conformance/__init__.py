"""tests/conformance"""
