"""Watches: not-finite values, mismatches, diverging replicas, slow ops."""
