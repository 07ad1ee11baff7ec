"""Actor and reward scorer in processes next to the learner, and what ties them together."""
