"""What holds for every test: nothing here depends on how fast or how busy the machine is."""

from __future__ import annotations

import os

from hypothesis import HealthCheck, settings

# Set before torch is imported. Its threads spin while they wait for each other: in two processes on
# two cores they wait for threads that have no core, and a test took fifteen times as long.
os.environ["OMP_NUM_THREADS"] = "1"

settings.register_profile("busy", deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.load_profile("busy")
