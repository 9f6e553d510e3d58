"""A replay whose outcome is certain need not run to its end.

A fleet that is far too small breaks its promise in the first tenth of the traffic: so many requests are late by then
that the rest could all be served at once and the quantile would still be above its limit. Taking the rest at its best
gives a lower bound of every clause, so what is broken then is broken for good.
"""

import math
from collections.abc import Iterable
from dataclasses import field, replace

import numpy as np

from tokenfleet.contract import Judging
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import GapHistogram, RunRecord, Status
from tokenfleet.domain.slo import Slo, SloResult
from tokenfleet.domain.world import Clients
from tokenfleet.planner.counting import CLEARLY
from tokenfleet.planner.giving_up import given_up

LOOKS = (1 / 16, 1 / 4, 1 / 2, 3 / 4)
"""When one looks, as shares of the time to the last arrival: a look costs as much as an eighth of a short replay."""
WINDOW_LOOKS = (1 / 2, 1.0)
"""The same where only the peak window counts, as shares of that: before it nothing is broken for good."""


@dataclass(frozen=True, slots=True)
class Look:
    """What a replay came to on the way, the rest taken at its best; see :func:`at_best`."""

    peak: tuple[SloResult, ...]
    overall: tuple[SloResult, ...]


@dataclass(frozen=True, slots=True)
class Hopeless:
    """Whether a promise is broken for good by what has happened so far, whatever comes."""

    slo: Slo
    window_s: tuple[float, float]
    peak_only: bool
    clients: Clients | None = None
    """Their time-outs count as errors."""
    looks: list[Look] = field(default_factory=list, compare=False)
    """What was seen, look by look: another promise may be held against it."""

    def looks_s(self, last_s: float) -> list[float]:
        """When to look, in order, in a replay whose last request arrives at ``last_s``."""
        if not self.peak_only:
            return [share * last_s for share in LOOKS]
        start_s, end_s = self.window_s
        return [start_s + share * (end_s - start_s) for share in WINDOW_LOOKS]

    def __call__(self, so_far: RunRecord) -> bool:
        """Judge the rest at its best; see :func:`at_best`."""
        best = Judging(given_up(at_best(so_far), self.clients))
        peak = best.of(self.slo, peak_only=True, window_s=self.window_s)
        self.looks.append(Look(peak, best.of(self.slo)))
        return self.gives_up(self.looks[-1])

    def gives_up(self, look: Look) -> bool:
        """Whether what was seen then is broken for good."""
        if self.peak_only:
            return any(result.sample_count and not result.kept for result in look.peak)
        return excess_of(worse_of(look.peak, look.overall)) > CLEARLY


def worse_of(peak: tuple[SloResult, ...], overall: tuple[SloResult, ...]) -> tuple[SloResult, ...]:
    """The worse result of each broken clause: in the peak window, or over all requests where it is missed by more."""
    worse = []
    for inside, whole in zip(peak, overall, strict=True):
        told = ((inside, inside.sample_count > 0), (whole, not whole.says_nothing))
        broken = [result for result, counts in told if counts and not result.kept]
        if broken:
            worse.append(max(broken, key=_missed_by))
    return tuple(worse)


def excess_of(broken: Iterable[SloResult]) -> float:
    """Largest ratio of what happened to what is promised among broken clauses; 1 without any."""
    return max(map(_missed_by, broken), default=1.0)


def _missed_by(result: SloResult) -> float:
    return math.inf if result.predicted is None else result.predicted / max(result.promised, 1e-12)


def at_best(record: RunRecord) -> RunRecord:
    """A cut record, as if whatever is open happened at once and without a gap; the record itself when it is whole.

    No clause judged on it comes out above its value in the whole replay: times still open end at the cut or on
    arrival, whichever is later, gaps still to come count in the lowest bin, and nobody else is refused.
    """
    if record.cut_s is None:
        return record
    soonest_s = np.maximum(record.arrival_s, record.cut_s)
    served = record.status == int(Status.FINISHED)
    first_open = served & np.isnan(record.first_token_s) & (record.output_tokens > 0)
    finish_open = served & np.isnan(record.finish_s)
    coming = int(np.maximum(record.output_tokens.astype(np.int64) - 1, 0)[served].sum() - record.gaps.count.sum())
    return replace(
        record,
        first_token_s=np.where(first_open, soonest_s, record.first_token_s),
        finish_s=np.where(finish_open, soonest_s, record.finish_s),
        gaps=_with_short_ones(record.gaps, coming),
        peak_gaps=None if record.peak_gaps is None else _with_short_ones(record.peak_gaps, coming),
    )


def _with_short_ones(gaps: GapHistogram, coming: int) -> GapHistogram:
    count = gaps.count.copy()
    count[0] += max(0, coming)
    return replace(gaps, count=count)
