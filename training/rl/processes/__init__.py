"""Practice in processes beside the learner: an actor, a scorer, and what ties them together."""
