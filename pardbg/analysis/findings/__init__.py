"""Findings: facts that detectors report, words from one table, one arbiter.

A detector yields candidates (``finding.Candidate``: kind, facts, ranks, culprits) and knows of no
other detector. ``arbiter`` decides which explain others. ``kinds`` has severity, sentences and the
rows of ``docs/findings.md`` for every kind. ``registry`` lists the detectors.
"""

from pardbg.analysis.findings.registry import DETECTORS, Detector, findings

__all__ = ["DETECTORS", "Detector", "findings"]
