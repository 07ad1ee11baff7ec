"""training/algos"""
