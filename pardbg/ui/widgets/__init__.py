"""Widgets: they show pictures that ``pardbg.render`` draws, and hold no data of their own."""
