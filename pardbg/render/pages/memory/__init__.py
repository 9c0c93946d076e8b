"""The memory page and its parts."""
