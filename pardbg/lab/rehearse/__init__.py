"""Rehearsal: a program run as every rank of a large job, each process without its peers."""
