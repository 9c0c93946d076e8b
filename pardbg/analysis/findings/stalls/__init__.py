"""Detectors of ranks that wait or disagree, and the facts that they share."""
