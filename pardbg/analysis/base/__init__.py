"""What every room of the analysis builds on: views as of a cursor, intervals, steps, values."""
