"""Control in a rank: gates, conditions, evaluation, comparison over the host's ranks."""
