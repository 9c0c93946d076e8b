"""The engine between store and screens: its thread, the cursor, the controller."""
