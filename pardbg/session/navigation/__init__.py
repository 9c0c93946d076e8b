"""Navigation in time: the replay clock, places, marks, alignment of two runs."""
