"""How long a cluster waits before it tries again what failed, on a clock that runs faster.

Used by the kubelet for containers and by the Job controller for pods. Messages name the seconds of
a real cluster; `speed` of them pass in one real second.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

DEFAULT_SPEED: Final = 60.0


@dataclass(frozen=True)
class BackOff:
    """Seconds are those of a real cluster, but for `real_s`."""

    first_s: float
    last_s: float
    speed: float
    forget_s: float = 0.0
    """What ran this long without an end begins anew."""

    def delay_s(self, failures: int) -> float:
        """Return the delay after so many failures in a row, at least one."""
        return min(self.first_s * 2.0 ** min(failures - 1, 32), self.last_s)

    def real_s(self, seconds: float) -> float:
        return seconds / self.speed

    def is_forgotten(self, ran_real_s: float) -> bool:
        """Say whether something ran long enough for its failures to count no longer."""
        return ran_real_s * self.speed >= self.forget_s


def of_containers(speed: float) -> BackOff:
    """Source: kubernetes, pkg/kubelet/kubelet.go; forgotten after twice the longest wait, by
    client-go, util/flowcontrol/backoff.go."""
    return BackOff(first_s=10, last_s=300, forget_s=600, speed=speed)


def of_jobs(speed: float) -> BackOff:
    """Source: kubernetes, pkg/controller/job/job_controller.go, MaxJobPodFailureBackOff."""
    return BackOff(first_s=10, last_s=600, speed=speed)


def duration_text(seconds: float) -> str:
    """Return a duration as Go prints it: `10s`, `1m20s`, `5m0s`."""
    minutes, rest = divmod(int(seconds), 60)
    return f"{minutes}m{rest}s" if minutes else f"{rest}s"
