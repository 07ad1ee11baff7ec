"""Process reward models: frames and an instruction in, progress out."""
