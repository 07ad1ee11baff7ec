"""training/recipes"""
