"""Drawing primitives: cells, bars, axes, small charts, SVG."""
