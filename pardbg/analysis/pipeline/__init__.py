"""Pipelines: layout, schedule, critical path, idle time, activations."""
