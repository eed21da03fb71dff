"""Books and timelines to training rows: everything that builds a data set."""
