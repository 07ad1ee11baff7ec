"""MJCF models of the arms."""
