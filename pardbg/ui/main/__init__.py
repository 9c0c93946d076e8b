"""The main screen, and the handlers of its actions: time, control, selection, the app."""
