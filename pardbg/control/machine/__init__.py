"""The control state machine and its parts. No I/O."""
