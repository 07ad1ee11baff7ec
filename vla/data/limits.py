"""Largest sizes that a file may declare; readers check them before they decode or allocate.

That of an image is `vla.contracts.specs.MAX_IMAGE_PX`.
"""

MAX_SIDE_PX = 1 << 14
"""Longest side of a video's images; libx264's."""
MAX_CHUNK_BYTES = 1 << 28
"""Bytes of an MCAP chunk, decompressed; recorders write chunks of about 1 MB."""
MAX_CHANNELS = 1 << 12
"""Numbers of a state or of an action; an arm has a few dozen."""
