"""The verbs of `vla` that export, verify, time and serve policies."""
