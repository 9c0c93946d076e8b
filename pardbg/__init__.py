"""pardbg: terminal dashboard and interactive debugger for parallel PyTorch training."""

__version__ = "0.1.0"
