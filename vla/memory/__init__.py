"""Memories of a policy: each file is a plug-in, its name the key."""
