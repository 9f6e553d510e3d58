"""What people reckon on paper, beside what replay found."""

from tokenfleet.domain.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class RoughFigure:
    """One rule of thumb, worked out for the chosen replica and the peak window."""

    name: str
    """``tokens per second``, ``Little's law``, ``KV at p50 context``, ``KV at p95 context``, ``spike``."""
    formula: str
    """With its numbers, for a person."""
    replica_count: float
    """Replicas it asks for, not rounded."""
    leaves_out: str
    """What it does not see."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rough:
    """All of them against the replicas that replay asks for."""

    figures: tuple[RoughFigure, ...]
    replayed_count: int
    """Replicas that keep the promise by replay, the spare ones gone."""
    why: str
    """Where they disagree, and which term decides."""
