"""Hostile input and failing disks: what every reader and every writing verb does with them."""
