"""Findings in plain words: evidence, culprits (not victims), and what to do next.

``registry.DETECTORS`` lists what is looked for; ``docs/findings.md`` says what each kind means.
"""

from pardbg.analysis.findings.registry import DETECTORS, Detector, findings

__all__ = ["DETECTORS", "Detector", "findings"]
