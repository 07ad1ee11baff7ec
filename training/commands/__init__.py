"""The verbs of `vla` that train, evaluate, report and view."""
