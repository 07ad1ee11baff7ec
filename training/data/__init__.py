"""training/data"""
