"""What one replay comes to, held against the promise; and who remembers it."""

from typing import Protocol

from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import Slo, SloResult
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Clients
from tokenfleet.planner import words
from tokenfleet.planner.early import Hopeless, excess_of, worse_of


@dataclass(frozen=True, slots=True)
class Latencies:
    """What a person looks at first, in the peak window; ``None`` where there were no samples.

    TTFT is that of the class that waits longest of those promised one, ITL that of all.
    """

    ttft_p50_s: float | None
    ttft_p99_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None


UNSEEN = Latencies(None, None, None, None)


@dataclass(frozen=True, slots=True)
class Verdict:
    """One replay, judged."""

    peak: tuple[SloResult, ...]
    overall: tuple[SloResult, ...]
    seen: Latencies
    """``UNSEEN`` of a replay that was stopped."""
    cut: bool = False
    """The replay was stopped: every value is what it comes to at least."""

    def said(self, result: SloResult) -> str:
        """``ttft_p99 is 2.31 s, promised 2 s``."""
        return words.broken(result, at_least=self.cut)

    @property
    def kept(self) -> bool:
        """Every clause is kept over all requests and, where the peak window has samples of it, in the window."""
        return not self.broken

    @property
    def kept_in_peak(self) -> bool:
        """The same, of the peak window alone."""
        return all(result.kept or not result.sample_count for result in self.peak)

    @property
    def promised_s(self) -> dict[str, float | None]:
        """What each latency promised comes to in the peak window, by the name of its clause."""
        return {result.name: result.predicted for result in self.peak if result.unit == "s" and not self.cut}

    @property
    def excess(self) -> float:
        """Largest ratio of what happened to what is promised among broken clauses; 1 when all are kept."""
        return excess_of(self.broken)

    @property
    def tightness(self) -> float:
        """Largest ratio of a predicted latency to its promise, in the peak window and over all; 0 without any."""
        ratios = [
            result.predicted / result.promised
            for result in (*self.peak, *self.overall)
            if result.unit == "s" and result.predicted is not None
        ]
        return max(ratios, default=0.0)

    @property
    def broken(self) -> tuple[SloResult, ...]:
        """The worse result of each broken clause."""
        return worse_of(self.peak, self.overall)


@dataclass(frozen=True, slots=True)
class Asked:
    """Everything that a verdict hangs on."""

    trace: Trace
    fleet: Fleet
    window_s: tuple[float, float]
    hopeless: Hopeless | None
    """When to give up; what it has seen when a verdict is kept."""
    slo: Slo
    clients: Clients | None
    """Their time-outs count as errors."""


class Verdicts(Protocol):
    """Verdicts of earlier plans: where only the decision matters, the record need not be read again."""

    def knows(self, asked: Asked) -> bool:
        """Whether :meth:`find` finds something."""

    def find(self, asked: Asked) -> Verdict | None:
        """The verdict on exactly this; ``None`` where there was none."""

    def keep(self, asked: Asked, verdict: Verdict) -> None:
        """Remember it."""
