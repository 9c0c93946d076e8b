"""Control messages as frozen values, and the codec that reads and writes them."""
