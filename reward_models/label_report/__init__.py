"""The report on a labelled data set: one offline page, its figures, and quality gates."""
