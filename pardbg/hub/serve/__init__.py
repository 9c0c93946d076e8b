"""Process of the hub: collector, router, agents, viewers, recording."""
