"""The traffic page and its parts."""
