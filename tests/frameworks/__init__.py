"""Programs of training frameworks, with and without pardbg."""
