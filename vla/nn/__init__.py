"""vla/nn"""
