"""Data sets, batches and predictions for reward model training."""
