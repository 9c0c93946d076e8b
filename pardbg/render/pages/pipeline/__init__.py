"""Parts of the pipeline page."""
