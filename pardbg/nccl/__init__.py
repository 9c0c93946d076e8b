"""Readers of NCCL's reports: debug lines, the Inspector's JSON lines, RAS's JSON."""
