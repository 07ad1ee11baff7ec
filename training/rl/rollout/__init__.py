"""Rollout collection and the reward source that scores rollouts."""
