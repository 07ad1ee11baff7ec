"""Figures of reward models: see `reward_models.metrics.table`."""
