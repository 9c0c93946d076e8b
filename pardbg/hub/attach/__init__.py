"""Inspection, from outside, of a job that was started without pardbg."""
