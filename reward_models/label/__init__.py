"""The labeller: a data set and a critic in, the same data set with progress and rewards out."""
