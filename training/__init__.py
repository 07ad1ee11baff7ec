"""The training loop and what it learns from: imitation, reward models, online RL."""
