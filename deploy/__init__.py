"""From a checkpoint to an artefact that runs without torch, and the proof that it is the same."""
