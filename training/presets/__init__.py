"""training/presets"""
