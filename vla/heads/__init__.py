"""Action heads: each file is a plug-in, its name the key."""
