"""Hooks for every collective and p2p op: issue, completion, and two implementations."""
