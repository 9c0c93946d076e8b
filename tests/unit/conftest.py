"""Property tests on a machine with other work: how long a draw takes says nothing of the code."""

from __future__ import annotations

from hypothesis import HealthCheck, settings

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
