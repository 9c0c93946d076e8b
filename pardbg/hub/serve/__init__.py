"""The hub process: collector, router, agents, viewers, recording."""
