"""training/sizes"""
