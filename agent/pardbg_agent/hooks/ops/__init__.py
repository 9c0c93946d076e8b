"""Every collective and p2p op: its issue, its completion, and the two ways to see both."""
