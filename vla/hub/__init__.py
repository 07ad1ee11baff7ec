"""Models on the Hub: the one place in the repository that ever contacts it."""
