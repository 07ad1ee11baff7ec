"""Training pairs and losses of reward models."""
