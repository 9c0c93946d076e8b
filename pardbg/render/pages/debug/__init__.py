"""The debug page and its parts."""
