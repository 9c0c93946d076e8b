"""A rank before, between and after its groups: its first moment, calls that block, its end."""
