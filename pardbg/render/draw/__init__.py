"""What every picture is drawn with: cells, bars, axes, small charts, SVG."""
