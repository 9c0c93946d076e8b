"""Findings about speed: communication, pipelines, slow groups, stragglers."""
