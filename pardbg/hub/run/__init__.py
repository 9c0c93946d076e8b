"""A run and its directory: configuration, start, launcher, list of runs."""
