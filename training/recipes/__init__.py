"""What to train, on what, for how long: each file is a recipe, its name the key."""
