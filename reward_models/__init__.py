"""Process-reward critics: frames and an instruction in, progress out."""
