"""Readers of what NCCL says of itself: debug lines, the Inspector's JSON lines, RAS's JSON."""
