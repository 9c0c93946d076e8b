"""Widgets that show pictures of ``pardbg.render`` and hold no data of their own."""
