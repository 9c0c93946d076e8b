"""Overview of many ranks as squares in the order of their device mesh."""
