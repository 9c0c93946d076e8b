"""Pages, one module each: what is selected, how far one zooms, which render function draws."""
