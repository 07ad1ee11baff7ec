"""vla/heads"""
