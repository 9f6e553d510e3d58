"""Replays requests through several pools, one pool after the other.

Stages feed forward: what a pool does changes nothing in those before it. So each pool is replayed on its own, with
the arrivals that the stages before it yield, and the whole is what one replay of everything at once would be.
"""

from collections.abc import Callable, Collection
from dataclasses import replace
from difflib import get_close_matches
from itertools import pairwise

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.run import GapHistogram, RunRecord, Status, requests_of
from tokenfleet.domain.stages import Call, Hold, PoolRun, Pools, Stage, StagedRun, Transfer, Wait
from tokenfleet.domain.trace import Trace, rows_of
from tokenfleet.domain.world import World
from tokenfleet.simulator.building import PS_PER_S, to_ps
from tokenfleet.simulator.joining import Journey, added, joined
from tokenfleet.simulator.replaying import replay

Buffer = npt.NDArray[np.int64]
Window = tuple[float, float]
DAY_S = 86_400.0


Worlds = Callable[[str, Trace], World | None]
"""The world around a pool, by its name and the calls to it; ``None``: a quiet one."""


def replay_stages(
    trace: Trace,
    pools: Pools,
    *,
    peak_window_s: Window | None = None,
    telemetry_interval_s: float | None = None,
    worlds: Worlds = lambda _name, _calls: None,
) -> StagedRun:
    """Replay every request of a trace through its stages.

    Args:
        trace: Requests in order of arrival; their lengths are what users sent and got.
        pools: Fleets, and the stages in the order in which requests take them.
        peak_window_s: As for :func:`tokenfleet.simulator.replaying.replay`.
        telemetry_interval_s: As there; a pool that has ended before the others reads as idle.
        worlds: What happens around each pool: failures, scaling, admission. What comes back to a pool after a refusal
            or a loss comes back to that pool; so pools still feed forward.

    Returns:
        The run of each pool, and the requests as their users see them. A request that a pool refuses goes no further.

    Raises:
        BadInput: A stage cannot be replayed; or a pool cannot, with the pool's name in front of the place.
    """
    check_stages(trace, pools)
    journey = start(trace)
    runs: dict[str, PoolRun] = {}
    for stage in pools.stages:
        going = stage.takes & (journey.status == Status.FINISHED)
        if isinstance(stage, Wait):
            journey.now_ps[going] += to_ps_column(stage.duration_s[going])
        elif isinstance(stage, Hold):
            journey.now_ps[going] += until_open_ps(journey.now_ps[going], stage)
        elif isinstance(stage, Transfer):
            send(journey, stage, going)
        else:
            calls, caller = calls_of(trace, journey, stage, going)
            try:
                record = replay(
                    calls,
                    announced(pools.fleets[stage.pool]) if stage.is_announced else pools.fleets[stage.pool],
                    peak_window_s=peak_window_s,
                    telemetry_interval_s=telemetry_interval_s,
                    world=worlds(stage.pool, calls),
                )
            except BadInput as error:
                named = (replace(each, where=f"{stage.pool}: {each.where}") for each in error.problems)
                raise BadInput(named) from None
            before = sum(run.record.replica_count for run in runs.values())
            bridges = arrive(journey, stage, record, caller, before)
            gaps, peak_gaps = seen_gaps(stage, record, bridges, peak_window_s)
            runs[stage.pool] = PoolRun(
                trace=calls, record=record, caller=caller.astype(np.int32), gaps=gaps, peak_gaps=peak_gaps
            )
    record = joined(trace, journey, runs)
    return StagedRun(record=record, pools=runs, transfer_s=journey.transfer_ps / PS_PER_S)


def check_stages(trace: Trace, pools: Pools) -> None:
    """Raise one :class:`BadInput` with everything that is wrong with the stages."""
    problems: list[Problem] = []
    called: set[str] = set()
    for index, stage in enumerate(pools.stages):
        where = f"stages[{index}]"
        columns: dict[str, npt.NDArray[np.generic]] = {"takes": stage.takes}
        if isinstance(stage, Call):
            columns |= {"input_tokens": stage.input_tokens, "output_tokens": stage.output_tokens}
            problems += _call_problems(where, stage, pools, called)
            called.add(stage.pool)
        elif isinstance(stage, Hold):
            problems += _hold_problems(where, stage)
        else:
            columns["duration_s"] = stage.duration_s
            if not np.all((stage.duration_s >= 0) & np.isfinite(stage.duration_s)):
                problems.append(Problem(f"{where}.duration_s", "a time that is negative or not known", "at least 0"))
        for name, column in columns.items():
            if len(column) != trace.request_count:
                what = f"{len(column)} entries for {trace.request_count} requests"
                problems.append(Problem(f"{where}.{name}", what, "give one per request"))
    if not called:
        problems.append(Problem("stages", "no pool is called", "give at least one Call"))
    if problems:
        raise BadInput(problems)


def _call_problems(where: str, stage: Call, pools: Pools, called: set[str]) -> list[Problem]:
    problems = []
    if stage.pool not in pools.fleets:
        near = get_close_matches(stage.pool, pools.fleets, n=1, cutoff=0.0)
        mend = f"nearest: {near[0]}" if near else "give its fleet"
        problems.append(Problem(f"{where}.pool", f"no pool is called {stage.pool!r}", mend))
    if stage.pool in called:
        what = f"{stage.pool!r} is called twice: requests would come back to it"
        problems.append(Problem(f"{where}.pool", what, "give each stage a pool of its own"))
    if stage.call_count < 1:
        problems.append(Problem(f"{where}.call_count", f"{stage.call_count}", "at least 1"))
    if stage.call_count > 1 and stage.is_seen:
        problems.append(Problem(f"{where}.is_seen", "nobody reads several answers at once", "set it to False"))
    return problems


def _hold_problems(where: str, stage: Hold) -> list[Problem]:
    return [
        Problem(f"{where}.{name}", f"{value} s is no time of day", f"0 up to {DAY_S:.0f}")
        for name in ("opens_s", "closes_s", "start_s")
        if not 0.0 <= (value := getattr(stage, name)) < DAY_S
    ]


def announced(fleet: Fleet) -> Fleet:
    """A fleet whose front end has done its work before the request comes."""

    def ready(group: ReplicaGroup) -> ReplicaGroup:
        return replace(group, replica=replace(group.replica, step_time=replace(group.replica.step_time, request_ps=0)))

    return replace(fleet, groups=tuple(ready(group) for group in fleet.groups))


def until_open_ps(now_ps: Buffer, stage: Hold) -> Buffer:
    """Time to the next opening of a daily window; 0 while it is open."""
    opens_ps, closes_ps, day_ps = to_ps(stage.opens_s), to_ps(stage.closes_s), to_ps(DAY_S)
    since_ps = (now_ps + to_ps(stage.start_s) - opens_ps) % day_ps
    return np.where(since_ps < (closes_ps - opens_ps) % day_ps, 0, (day_ps - since_ps) % day_ps)


def narrowed(pools: Pools, chosen: Buffer) -> Pools:
    """The stages of some requests, and one replica of each kind in every pool: for requests that come one at a time.

    Args:
        pools: The system.
        chosen: Numbers of the requests, in their order.
    """

    def part(stage: Stage) -> Stage:
        takes = stage.takes[chosen]
        if isinstance(stage, Call):
            inputs, outputs = stage.input_tokens[chosen], stage.output_tokens[chosen]
            return replace(stage, takes=takes, input_tokens=inputs, output_tokens=outputs)
        if isinstance(stage, Hold):
            return replace(stage, takes=takes)
        return replace(stage, takes=takes, duration_s=stage.duration_s[chosen])

    def one(fleet: Fleet) -> Fleet:
        return replace(fleet, groups=tuple(replace(group, replica_count=1) for group in fleet.groups))

    return Pools(
        fleets={name: one(fleet) for name, fleet in pools.fleets.items()},
        stages=tuple(part(stage) for stage in pools.stages),
    )


def of_requests(run: StagedRun, chosen: npt.NDArray[np.bool_], pools: Collection[str]) -> RunRecord:
    """The record of some requests alone, with the gaps that users see of some pools.

    Args:
        run: What happened to all of them.
        chosen: Which requests count.
        pools: The pools whose gaps are theirs.
    """
    record = run.record
    seen = [each for name, each in run.pools.items() if name in pools]
    peaks = [each.peak_gaps for each in seen if each.peak_gaps is not None]
    return replace(
        requests_of(record, chosen),
        gaps=added([each.gaps for each in seen if each.gaps is not None]),
        peak_gaps=None if record.peak_gaps is None else added(peaks),
    )


def start(trace: Trace) -> Journey:
    """Everybody at the door."""
    count = trace.request_count

    def column(value: int = 0) -> Buffer:
        return np.full(count, value, dtype=np.int64)

    return Journey(
        now_ps=to_ps_column(trace.arrival_s),
        status=np.zeros(count, dtype=np.int8),
        first_ps=column(-1),
        last_ps=column(-1),
        replica=column(),
        sender=column(),
        cached_tokens=column(),
        preemption_count=column(),
        transfer_ps=column(),
    )


def to_ps_column(times_s: npt.NDArray[np.float64]) -> Buffer:
    """Seconds as picoseconds; what never happened (NaN) is -1."""
    return np.rint(np.where(np.isnan(times_s), -1.0 / PS_PER_S, times_s) * PS_PER_S).astype(np.int64)


def calls_of(trace: Trace, journey: Journey, stage: Call, going: npt.NDArray[np.bool_]) -> tuple[Trace, Buffer]:
    """The calls to a pool in order of arrival, at equal times of their requests; and the request behind each."""
    rows = np.flatnonzero(going)
    rows = rows[np.argsort(journey.now_ps[rows], kind="stable")]
    caller = np.repeat(rows, stage.call_count)
    shared = stage.shares_prefixes and trace.prefix_node is not None
    calls = replace(
        rows_of(trace, caller),
        arrival_s=journey.now_ps[caller] / PS_PER_S,
        input_tokens=stage.input_tokens[caller],
        output_tokens=stage.output_tokens[caller],
        kv_delivered=np.ones(len(caller), dtype=np.bool_) if stage.kv_delivered else None,
    )
    if not shared:
        calls = replace(calls, prefix_node=None, prefixes=None)
    return calls, caller


def send(journey: Journey, stage: Transfer, going: npt.NDArray[np.bool_]) -> None:
    """Move KV over the links of the replicas that hold it, first come first served on each.

    A link that is busy for ``s[i]`` with the i-th transfer, which is ready at ``r[i]``, is done with it at the sum of
    all ``s`` up to ``i`` and the latest start that any of those before it forces.
    """
    rows = np.flatnonzero(going)
    rows = rows[np.lexsort((rows, journey.now_ps[rows], journey.sender[rows]))]
    durations_ps = to_ps_column(stage.duration_s)
    edges = np.flatnonzero(np.diff(journey.sender[rows], prepend=-1, append=-1))
    for first, end in pairwise(edges):
        on_link = rows[first:end]
        ready_ps = journey.now_ps[on_link]
        busy_ps = np.cumsum(durations_ps[on_link])
        done_ps = busy_ps + np.maximum.accumulate(ready_ps - busy_ps + durations_ps[on_link])
        done_ps += to_ps(stage.latency_s)
        journey.transfer_ps[on_link] += done_ps - ready_ps
        journey.now_ps[on_link] = done_ps


def arrive(
    journey: Journey, stage: Call, record: RunRecord, rows: Buffer, replicas_before: int
) -> tuple[Buffer, Buffer]:
    """Move the requests of a pool to the end of its answer.

    Returns:
        Gaps between a seen token of an earlier call and the first of this one, and when they end; in picoseconds.
    """
    np.maximum.at(journey.status, rows, record.status)
    sent_to = record.replica.astype(np.int64)
    journey.replica[rows] = np.where(sent_to < 0, -1, sent_to + replicas_before)
    journey.sender[rows] = journey.replica[rows]
    np.add.at(journey.preemption_count, rows, record.preemption_count)
    if stage.shares_prefixes:
        np.add.at(journey.cached_tokens, rows, record.cached_tokens)
    ended = record.status == Status.FINISHED
    finish_ps = to_ps_column(record.finish_s)
    np.maximum.at(journey.now_ps, rows[ended], finish_ps[ended])
    first_ps = to_ps_column(record.first_token_s)
    speaks = ended & (first_ps >= 0) & stage.is_seen
    rows, first_ps = rows[speaks], first_ps[speaks]
    known = journey.last_ps[rows] >= 0
    gaps_ps = first_ps[known] - journey.last_ps[rows[known]]
    fresh = rows[~known]
    journey.first_ps[fresh] = first_ps[~known]
    journey.last_ps[rows] = finish_ps[speaks]
    return gaps_ps, first_ps[known]


def seen_gaps(
    stage: Call, record: RunRecord, bridges: tuple[Buffer, Buffer], peak_window_s: Window | None
) -> tuple[GapHistogram | None, GapHistogram | None]:
    """What users see of the gaps of a pool, over the whole run and in the peak window."""
    if not stage.is_seen:
        return None, None
    gaps_ps, ends_ps = bridges
    if peak_window_s is None or record.peak_gaps is None:
        return added([record.gaps], gaps_ps), None
    inside = (ends_ps >= to_ps(peak_window_s[0])) & (ends_ps < to_ps(peak_window_s[1]))
    return added([record.gaps], gaps_ps), added([record.peak_gaps], gaps_ps[inside])
