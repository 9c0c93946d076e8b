"""Hooks into communication: collectives, point-to-point ops, groups, completion."""
