"""Success of a policy in simulation, pass@k, videos and memory maps."""
