"""Between the store and the screens: the feeding thread, the cursor, the controller."""
