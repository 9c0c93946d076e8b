"""Pure functions from a store and a cursor to the values that screens and reports show."""
