"""A program run as every rank of a large job, one process a rank, with nobody to talk to."""
