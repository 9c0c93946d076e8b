"""Importers of other tools' evidence as sessions: Flight Recorder dumps and profiler traces.

Facts that a source lacks are left out, never guessed; ``Imported.lacks`` lists them.
"""
