"""Communication: ops matched over ranks, sends with receives, algorithms, traffic, overlap."""
