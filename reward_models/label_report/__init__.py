"""The report on a labelled data set: one offline page, its metrics, and quality gates."""
