"""Pages, one module each: selection, zoom, and the render function that draws."""
