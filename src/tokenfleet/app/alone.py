"""What requests take when nobody else is there: what their times under load are held against."""

from dataclasses import replace
from typing import Final

import numpy as np
import numpy.typing as npt

from tokenfleet import simulator
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import GapHistogram, RunRecord
from tokenfleet.domain.trace import Floats, Ints, Trace, rows_of

_ALONE_BLOCKS: Final = 10
_ALONE_BLOCK_COUNT: Final = 100
_ALONE_APART_S: Final = 3_600.0
"""Longer than any request takes alone; idle time costs a replay nothing."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Alone:
    """Times of requests beside which nobody is."""

    ttft_s: Floats
    gaps: GapHistogram


def answered(record: RunRecord) -> RunRecord:
    """The record with the end of requests without output, such as embeddings, taken for their first token."""
    return replace(record, first_token_s=np.where(record.output_tokens == 0, record.finish_s, record.first_token_s))


def alone(
    trace: Trace,
    fleet: Fleet,
    replica: Ints,
    window_s: tuple[float, float] | None = None,
    caller: Ints | None = None,
) -> Alone:
    """Replay requests one at a time: what they take when nobody else is there.

    Ten stretches of a hundred neighbours (all of them where there are fewer) spread evenly over the trace, each
    request an hour after the one before, on one idle replica of the kind that served it. Neighbours keep what they
    share; caches start empty, so where the prefix cache saves much, being up is said late rather than early. Times are
    those of :func:`answered`.

    Args:
        trace: The traffic.
        fleet: The fleet under load.
        replica: The one that each request was sent to there.
        window_s: Take requests that arrive inside only.
        caller: Who makes each call: those of one caller come together, to as many replicas as there are; ``None``: each
            makes one.
    """
    inside = np.arange(trace.request_count)
    if window_s is not None:
        inside = np.flatnonzero((trace.arrival_s >= window_s[0]) & (trace.arrival_s < window_s[1]))
    chosen = inside[_stretches(len(inside))]
    ends = np.cumsum([group.replica_count for group in fleet.groups])
    # Requests that were turned away were sent to nobody; any kind may stand for them.
    kind = np.searchsorted(ends, np.maximum(replica[chosen], 0), side="right")
    runs = [
        answered(_one_by_one(trace, chosen[kind == index], group, caller))
        for index, group in enumerate(fleet.groups)
        if index in kind
    ]
    gaps = GapHistogram(lower_s=runs[0].gaps.lower_s, count=np.sum([run.gaps.count for run in runs], axis=0))
    return Alone(ttft_s=np.concatenate([run.ttft_s for run in runs]), gaps=gaps)


def _one_by_one(trace: Trace, rows: npt.NDArray[np.int64], group: ReplicaGroup, caller: Ints | None) -> RunRecord:
    place = np.arange(len(rows)) if caller is None else np.unique(caller[rows], return_inverse=True)[1]
    rows, moments_s = rows[np.argsort(place, kind="stable")], np.sort(place) * np.float64(_ALONE_APART_S)
    one = replace(group, up_to=None, is_smaller_model=False)
    one = replace(one, replica_count=1) if caller is None else one
    return simulator.replay(replace(rows_of(trace, rows), arrival_s=moments_s), Fleet(groups=(one,)))


def _stretches(count: int) -> npt.NDArray[np.int64]:
    """Places of the sample among ``count`` requests."""
    if count <= _ALONE_BLOCKS * _ALONE_BLOCK_COUNT:
        return np.arange(count)
    starts = np.linspace(0, count - _ALONE_BLOCK_COUNT, _ALONE_BLOCKS).astype(np.int64)
    return np.unique(starts[:, None] + np.arange(_ALONE_BLOCK_COUNT))
