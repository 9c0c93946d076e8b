"""Pages of the app, one module or package each."""
