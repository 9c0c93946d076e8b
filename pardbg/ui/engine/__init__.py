"""Between store and screens: the engine's thread, the cursor, the controller."""
