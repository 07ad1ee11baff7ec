"""Data sets on disk (LeRobotDataset v3): checked, read, decoded and written; no torch."""
