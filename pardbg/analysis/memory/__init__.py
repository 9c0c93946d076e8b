"""Memory: what the bytes of each rank are, and what sharding gathers and frees."""
