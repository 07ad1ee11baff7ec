"""Figures of critics: see `reward_models.metrics.table`."""
