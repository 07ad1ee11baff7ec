"""Physics engines of many worlds, and any of them as a `VecEnv`."""
