"""What the report's JSON must be: its schema, as the package has it."""

from __future__ import annotations

import json
from importlib import resources

import jsonschema

SCHEMA = resources.files("pardbg.analysis.answers").joinpath("report.schema.json")
VALIDATOR = jsonschema.Draft202012Validator(json.loads(SCHEMA.read_text("utf-8")))
