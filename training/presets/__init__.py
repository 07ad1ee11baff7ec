"""Changes of scale that fit any recipe: each file is a plug-in, its name the key."""
