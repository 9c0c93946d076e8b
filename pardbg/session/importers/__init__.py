"""Evidence that other tools left, as sessions: Flight Recorder dumps and profiler traces.

What a source does not say is left out, never guessed; ``Imported.lacks`` says what that is.
"""
