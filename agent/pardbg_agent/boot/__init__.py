"""A directory to put on PYTHONPATH: its sitecustomize starts the agent."""
