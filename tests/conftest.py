"""Fixtures that every test file may use, and hypothesis profiles."""

import os

from hypothesis import HealthCheck, settings

settings.register_profile("default", deadline=None, print_blob=True)
# On shared CI cores a slow example is no failure, and a run must be repeatable.
settings.register_profile(
    "ci", deadline=None, derandomize=True, print_blob=True, suppress_health_check=[HealthCheck.too_slow]
)
settings.load_profile("ci" if os.environ.get("CI") else "default")
