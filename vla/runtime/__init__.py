"""Running a policy at control rate: real-time chunking, noise, prefixes and loading; no torch."""
