"""vla/contracts"""
