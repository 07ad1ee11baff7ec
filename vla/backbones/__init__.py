"""Vision and language encoders: each file is a plug-in, its name the key."""
