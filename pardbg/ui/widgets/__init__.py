"""Widgets that show pictures of ``pardbg.render``, without data of their own."""
