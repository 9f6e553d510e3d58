"""Whether the GPUs of a plan can be had, how many it may come to hold, and how long a start must be allowed to take."""

from tokenfleet.domain.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Obtainable:
    """What a plan asks of whoever rents out GPUs, and of the probe that watches a start."""

    assured: bool
    """The fleet stands in more than one zone, or another gpu model has a fleet that keeps the promise too."""
    why: str
    """Why it is assured or not, in words."""
    instead: tuple[str, ...]
    """Fleets of other gpu models that keep the promise, the cheapest first, in words."""
    most_gpu_count: int
    """GPUs held at the worst: the most replicas that may run, and those that a rollout starts before others leave."""
    most_why: str
    """What they are, in words."""
    allowed_gpu_count: int | None
    """GPUs that the quota and the zones allow; ``None``: nobody says."""
    startup_budget_s: float
    """What a start-up probe must allow: one and a half times the longest predicted start."""
    startup_why: str
    """What that start rests on, in words."""

    @property
    def is_allowed(self) -> bool | None:
        """Whether the worst stays within what is allowed; ``None``: nobody says what is."""
        return None if self.allowed_gpu_count is None else self.most_gpu_count <= self.allowed_gpu_count
