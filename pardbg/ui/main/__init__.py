"""The main screen, and the handlers of its actions: time, control, looking around, the app."""
