"""vla/policies"""
