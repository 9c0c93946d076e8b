"""Life of a rank outside its groups: its start, calls that block, its end."""
