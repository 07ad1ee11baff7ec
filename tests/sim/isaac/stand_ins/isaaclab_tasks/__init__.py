"""Tasks, which are registered once `utils` is imported."""
