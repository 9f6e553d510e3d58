"""What a search tells a person while it works."""

from typing import Protocol

from tokenfleet.domain.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanProgress:
    """One sign of life."""

    phase: str
    """``floors``, ``sizing``, ``verifying``, ``limits``, ``curve``, ``sensitivity``, ``relaxing``."""
    trying: str
    """The fleet being replayed, in words."""
    best: str
    """The cheapest fleet so far that keeps the promise; empty before there is one."""
    done_fraction: float
    """Share of the whole plan that is done, an estimate; never falls."""


class Progress(Protocol):
    """Anything that wants to hear of it."""

    def __call__(self, step: PlanProgress, /) -> None:
        """Takes one sign of life."""


class Reporter:
    """Keeps the fraction from falling and the best fleet at hand; silent without a listener."""

    def __init__(self, listener: Progress | None) -> None:
        self._listener = listener
        self._done = 0.0
        self.best = ""

    def say(self, phase: str, trying: str, done_fraction: float) -> None:
        """Reports ``trying`` in ``phase`` at ``done_fraction`` of the whole plan, 0 to 1."""
        self._done = min(1.0, max(self._done, done_fraction))
        if self._listener is not None:
            self._listener(PlanProgress(phase=phase, trying=trying, best=self.best, done_fraction=self._done))

    def within(self, phase: str, said: str, done_fraction: float) -> "Reporter":
        """One for a search that is a step of this work: it tells of ``phase``, and of each fleet ``said`` with it."""

        def heard(step: PlanProgress) -> None:
            self.say(phase, f"{said}, {step.trying}", done_fraction)

        return Reporter(None if self._listener is None else heard)
