"""A job that was started without pardbg, looked at from outside."""
