"""A run judged minute by minute: how long a promise was broken, and how long until it held again."""

from collections.abc import Mapping
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokenfleet.contract.judge import ended
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.slo import LatencyTarget, Slo
from tokenfleet.domain.trace import Floats

MINUTE_S = 60.0
Marks = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class Minutes:
    """One entry per minute from second 0 to the last arrival. A request belongs to the minute in which it arrived."""

    request_count: npt.NDArray[np.int64]
    broken: Mapping[str, Marks]
    """By clause. Token gaps are not counted by minute, so ``itl`` is missing; so are the queue and deadlines."""

    @property
    def any_broken(self) -> Marks:
        """Minutes in which at least one clause is broken."""
        marks = np.zeros(len(self.request_count), dtype=np.bool_)
        for each in self.broken.values():
            marks |= each
        return marks

    def without(self, marks: Marks) -> "Minutes":
        """The same with some minutes not counted as broken."""
        width = len(self.request_count)
        left = ~marks[:width] if len(marks) >= width else ~np.pad(marks, (0, width - len(marks)))
        return replace(self, broken={name: each & left for name, each in self.broken.items()})

    @property
    def broken_count(self) -> int:
        """How many minutes that is."""
        return int(self.any_broken.sum())

    @property
    def longest_broken_count(self) -> int:
        """The longest stretch of broken minutes: the worst time to recover. Minutes without arrivals end none."""
        longest = here = 0
        for bad, count in zip(self.any_broken.tolist(), self.request_count.tolist(), strict=True):
            here = here + 1 if bad or (here and not count) else 0
            longest = max(longest, here)
        return longest


def judge_minutes(record: RunRecord, slo: Slo) -> Minutes:
    """Judge each minute of arrivals on its own.

    A clause at quantile ``q`` is broken in a minute when more than ``1 - q`` of its requests took longer than the
    limit; one that never finished took for ever. The error rate is broken when more than the promised share was
    refused, lost or timed out, the rejection rate when more was turned away at the door. A request that its user left
    is not judged.
    """
    stayed = record.status != Status.CANCELLED
    at = (record.arrival_s // MINUTE_S).astype(np.int64)
    # In a closed loop requests come in another order than that of the trace.
    size = int(at.max()) + 1 if len(at) else 0
    finished = record.status == Status.FINISHED
    broken = {
        target.name: _broken(at, size, *_late(record, finished, stayed, target), 1.0 - target.quantile)
        for target in slo.latency
        if target.metric != "itl"
    }
    for rate in slo.rates:
        members = stayed & record.of_class(rate.traffic_class)
        bad = members & ended(record, finished, rate, apart=slo.counts_rejections(rate.traffic_class))
        broken[rate.name] = _broken(at, size, members, bad, rate.limit_fraction)
    return Minutes(request_count=np.bincount(at, minlength=size), broken=broken)


def _late(record: RunRecord, finished: Marks, stayed: Marks, target: LatencyTarget) -> tuple[Marks, Marks]:
    """Which requests a clause speaks of, and which of them it finds too slow."""
    columns: dict[str, Floats] = {"ttft": record.ttft_s, "tpot": record.tpot_s, "e2e": record.e2e_s}
    time_s = columns[target.metric]
    # A finished request without a first or second token has nothing to be late with.
    spoken_of = stayed & ~(finished & np.isnan(time_s)) & record.of_class(target.traffic_class)
    late = ~finished | (time_s > target.limit_s)
    return spoken_of, spoken_of & late


def _broken(at: npt.NDArray[np.int64], size: int, spoken_of: Marks, late: Marks, allowed_fraction: float) -> Marks:
    total = np.bincount(at[spoken_of], minlength=size)
    missed = np.bincount(at[late], minlength=size)
    marks: Marks = missed > allowed_fraction * total + 1e-9
    return marks
