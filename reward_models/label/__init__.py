"""The labeller: a data set and a reward model in, the same data set with progress and rewards
out.
"""
