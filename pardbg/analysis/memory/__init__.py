"""Memory: categories of each rank's bytes, and what sharding gathers and frees."""
