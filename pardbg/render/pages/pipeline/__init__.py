"""The pipeline page and its parts."""
