"""How full a fleet may be: what it could do with a queue that never empties, and what is left of that.

A fleet that serves people is never that full. A promise of a first token needs replicas that are free when somebody
comes; replicas come whole; some are spare; and most hours are not the peak. Each takes its share, and what is left is
the utilization to expect. Work that has until the morning gives up none of the first.
"""

from dataclasses import replace
from typing import Protocol

import numpy as np

from tokenfleet import cost
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.plan import Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.trace import Trace, rows_of
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Traffic, stretch
from tokenfleet.planner.work import DETAIL_REQUESTS, SEARCH_REQUESTS

_MOST_REQUESTS = 4_000
_FULL = (0.1, 0.9)
"""Between these shares of all endings every replica has as much as it can take."""
_WAVES = 4
"""Requests of a replica over those that run in it together: with fewer it fills, runs dry, and is never just full."""
_SQUEEZED = 1e-6
"""All requests come in about a millionth of their time, in their order."""


class _Replays(Protocol):
    def __call__(self, trace: Trace, fleet: Fleet, /) -> RunRecord:
        """Replays a trace on a fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Saturated:
    """A fleet that always has somebody waiting."""

    rate_per_s: float
    """Requests per second between a tenth and nine tenths of all endings, when every replica is full."""
    work: cost.TokenWork
    """What a token takes of a full replica."""


def saturated(trace: Trace, fleet: Fleet, replay: _Replays) -> Saturated | None:
    """What a fleet gets through when all requests wait for it from the beginning.

    Of equal replicas as many are replayed as the requests keep full: where all wait at once, each does what it would do
    beside more of them, but for prompts that it finds in its cache.

    Args:
        trace: What is asked; of more than 4,000 requests those in the middle.
        fleet: Who serves it.
        replay: Runs a replay.

    Returns:
        ``None`` of so few requests that they end together.
    """
    first = max(0, (trace.request_count - _MOST_REQUESTS) // 2)
    part = rows_of(trace, slice(first, first + _MOST_REQUESTS))
    kept = _kept_full(fleet, part)
    record = replay(replace(part, arrival_s=(part.arrival_s - part.arrival_s[0]) * _SQUEEZED), kept)
    ended_s = np.sort(record.finish_s[record.status == Status.FINISHED])
    low, high = (int(len(ended_s) * share) for share in _FULL)
    if high <= low or ended_s[high] <= ended_s[low]:
        return None
    rate_per_s = float((high - low) / (ended_s[high] - ended_s[low]))
    more = _replica_count(fleet) / _replica_count(kept)
    return Saturated(rate_per_s=rate_per_s * more, work=cost.token_work(record, rate_per_s=rate_per_s))


def _kept_full(fleet: Fleet, trace: Trace) -> Fleet:
    """As many of the replicas, where all are equal, as get enough requests to be full for most of the time."""
    if len(fleet.groups) > 1:
        return fleet
    (group,) = fleet.groups
    replica = group.replica
    # Half of the output is there on average.
    context = float(trace.input_tokens.mean()) + float(trace.output_tokens.mean()) / 2.0
    held = replica.kv_block_count // max(1, replica.sequence_blocks(context))
    together = max(1, min(replica.deployment.engine.max_sequence_count, held))
    count = min(group.replica_count, max(1, trace.request_count // (_WAVES * together)))
    return replace(fleet, groups=(replace(group, replica_count=count),))


def _replica_count(fleet: Fleet) -> int:
    return sum(group.replica_count for group in fleet.groups)


def full_replicas(replays: Replays, detail: Traffic, sized: Sized) -> Saturated | None:
    """What the carrying replicas get through with a queue that never empties."""

    def run(trace: Trace, fleet: Fleet) -> RunRecord:
        replays.count += 1
        return replays.replay(trace, fleet)

    carrying = detail, sized.replica, sized.carrying_count
    fleet = replays.fleet(sized.replica, sized.carrying_count)
    return replays.recalled("saturated", carrying, lambda: saturated(detail.trace, fleet, run))


@dataclass(frozen=True, slots=True, kw_only=True)
class Filled:
    """How full one pool is, as shares of what all its replicas could do with a queue that never empties."""

    saturated_rate_per_s: float
    """Of all replicas."""
    peak_fraction: float
    """At most 1: what is asked beyond waits."""
    peak_to_saturated_ratio: float
    """What is asked at the peak over that rate."""
    mean_fraction: float
    spare_fraction: float
    """Share of the replicas that is spare."""
    mean_to_peak_ratio: float


def filled(
    calls: Trace, fleet: Fleet, replay: _Replays, *, carrying_count: int, window_s: tuple[float, float]
) -> Filled | None:
    """How full a pool of equal replicas is at its peak, and on average.

    Args:
        calls: What it is asked, in order of arrival.
        fleet: Its carrying and spare replicas.
        replay: Runs a replay.
        carrying_count: Those that carry.
        window_s: The peak window.

    Returns:
        ``None`` where it is asked too little to say.
    """
    if calls.request_count == 0:
        return None
    (group,) = fleet.groups
    asked = Traffic(calls, window_s)
    carrying = replace(fleet, groups=(replace(group, replica_count=carrying_count),))
    full = saturated(busiest_part(asked).trace, carrying, replay)
    if full is None:
        return None
    total = group.replica_count
    rate_per_s = full.rate_per_s * total / carrying_count
    mean, busiest = asked.mean_rate_per_s, busiest_rate_per_s(asked)
    return Filled(
        saturated_rate_per_s=rate_per_s,
        peak_fraction=min(1.0, busiest / rate_per_s),
        peak_to_saturated_ratio=busiest / rate_per_s,
        mean_fraction=min(1.0, mean / rate_per_s),
        spare_fraction=1.0 - carrying_count / total,
        mean_to_peak_ratio=mean / busiest,
    )


def busiest_rate_per_s(asked: Traffic) -> float:
    """Calls per second of a pool at the peak of all; those of all the time, where it is asked more then."""
    return max(asked.peak_rate_per_s, asked.mean_rate_per_s)


def busiest_part(asked: Traffic) -> Traffic:
    """What a pool is asked around the peak of all: as much as it is filled with."""
    return stretch(stretch(asked, SEARCH_REQUESTS), DETAIL_REQUESTS)
