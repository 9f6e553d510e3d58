"""Pools that stand on the same gpus, replayed on one clock: one replay of all calls to all pools.

What such a pool does moves the steps of the others, so they cannot be replayed one after the other. All pools of the
system are then groups of one fleet, each call is a request of its own, and a call is sent when those before it on the
way of its request have ended.
"""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import (
    ClassGaps,
    RunRecord,
    Status,
    Telemetry,
    Turmoil,
    WorkDone,
    requests_of,
)
from tokenfleet.domain.stages import Call, Pools, Wait
from tokenfleet.domain.trace import Trace, rows_of
from tokenfleet.domain.world import BY_CLOCK, ClosedLoop, World
from tokenfleet.simulator.building import PS_PER_S, to_ps
from tokenfleet.simulator.checking import check
from tokenfleet.simulator.checking_sharing import check_told_apart
from tokenfleet.simulator.gathering import Worlds, gathered
from tokenfleet.simulator.replaying import busy_time, check_times, run_in

Buffer = npt.NDArray[np.int64]
ALL = ""
"""Stands for all requests of a pool among its classes."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Served:
    """What one pool made of the calls to it."""

    calls: Trace
    caller: Buffer
    """Number of the request behind each call."""
    record: RunRecord


@dataclass(frozen=True, slots=True, kw_only=True)
class Calls:
    """All calls to all pools, in the order in which their requests come to their first one."""

    caller: Buffer
    pool: Buffer
    loop: ClosedLoop
    arrival_s: npt.NDArray[np.float64]
    """When the request makes its first call; later ones follow from it."""


def together(
    trace: Trace,
    pools: Pools,
    worlds: Worlds,
    *,
    peak_window_s: tuple[float, float] | None,
    telemetry_interval_s: float | None,
) -> dict[str, Served]:
    """Replay all pools at once.

    Args:
        trace: The requests.
        pools: A checked system of which some pools share gpus: calls, and waits between them.
        worlds: The world around each pool.
        peak_window_s: As for :func:`tokenfleet.simulator.replaying.replay`.
        telemetry_interval_s: As there.

    Returns:
        What became of each pool, by name.

    Raises:
        BadInput: A pool cannot be replayed beside the others.
    """
    stages = [stage for stage in pools.stages if isinstance(stage, Call)]
    calls = calls_of_all(trace, pools)
    rows, names = rows_of_all(trace, stages, calls)
    fleet = side_by_side([pools.fleets[stage.pool] for stage in stages])
    alone = [rows_of(rows, calls.pool == number) for number in range(len(stages))]
    around = gathered(worlds, [stage.pool for stage in stages], alone, fleet)
    world = replace(around or World(), calls=calls.pool.astype(np.int32), closed_loop=calls.loop)
    check(rows, fleet, world)
    # Without telemetry nobody counts pool by pool.
    interval_s = telemetry_interval_s or max(1.0, rows.duration_s)
    check_times(rows, peak_window_s, interval_s)
    record, replicas = run_in(world, rows, fleet, peak_window_s, to_ps(interval_s))
    parts, first = {}, 0
    for number, stage in enumerate(stages):
        mine = slice(first, first + sum(group.replica_count for group in pools.fleets[stage.pool].groups))
        sent = sent_to(record, calls, number)
        own = replace(part_of(record, sent, mine, names[number]), busy=busy_time(replicas[mine]))
        own = own if telemetry_interval_s is not None else replace(own, telemetry=None, ledger=None, class_gaps={})
        own = own if around is not None else replace(own, turmoil=None)
        parts[stage.pool] = called(own, trace, stage, calls.caller[sent])
        first = mine.stop
    return parts


def calls_of_all(trace: Trace, pools: Pools, comes: npt.NDArray[np.bool_] | None = None) -> Calls:
    """The calls of each request one behind the other, and what each waits for.

    Args:
        trace: The requests.
        pools: Calls, and waits between them.
        comes: Requests that come by the clock; the others stand behind those before them, so that at equal moments the
            order of the requests counts. ``None``: all do.
    """
    count = trace.request_count
    first_s, waited_s = trace.arrival_s.copy(), np.zeros(count)
    before = np.full(count, -1)
    called: list[tuple[Buffer, int, Buffer, npt.NDArray[np.float64]]] = []
    for stage in pools.stages:
        if isinstance(stage, Wait):
            waited_s += np.where(stage.takes, np.rint(stage.duration_s * PS_PER_S) / PS_PER_S, 0.0)
        elif isinstance(stage, Call):
            takes = np.flatnonzero(stage.takes)
            fresh = takes[before[takes] < 0]
            first_s[fresh] += waited_s[fresh]
            called.append((takes, stage.call_count, before[takes], waited_s[takes]))
            before[takes] = len(called) - 1
            waited_s[takes] = 0.0
    if comes is not None:
        first_s[~comes] = np.maximum.accumulate(np.where(comes, first_s, 0.0))[~comes]
    sizes = np.array([each[1] for each in called])
    caller = np.concatenate([np.repeat(takes, size) for takes, size, _, _ in called])
    pool = np.concatenate([np.full(len(takes) * size, number) for number, (takes, size, _, _) in enumerate(called)])
    cause = np.concatenate([np.repeat(cause, size) for _, size, cause, _ in called])
    delay_s = np.concatenate([np.repeat(wait_s, size) for _, size, _, wait_s in called])
    order = np.lexsort((pool, caller, first_s[caller]))
    caller, pool, cause, delay_s = caller[order], pool[order], cause[order], delay_s[order]
    # The last call before the first one of a stage is the one right before it.
    begins = np.flatnonzero(np.diff(caller, prepend=-1) | np.diff(pool, prepend=-1))
    start = np.repeat(begins, np.diff(begins, append=len(caller)))
    follows = cause >= 0
    loop = ClosedLoop(
        after=np.where(follows, start - 1, BY_CLOCK).astype(np.int32),
        delay_s=delay_s,
        end_count=np.where(follows, sizes[cause], 1).astype(np.int32),
        only_after_success=True,
    )
    return Calls(caller=caller, pool=pool, loop=loop, arrival_s=first_s[caller])


def rows_of_all(trace: Trace, stages: Sequence[Call], calls: Calls) -> tuple[Trace, list[dict[str, str]]]:
    """The calls as requests, whose classes tell the pools apart, too; and what these are called, pool by pool."""
    rows = replace(rows_of(trace, calls.caller), arrival_s=calls.arrival_s, kv_delivered=None)
    inputs, outputs = rows.input_tokens.copy(), rows.output_tokens.copy()
    node = None if rows.prefix_node is None else rows.prefix_node.copy()
    classes: list[str] = []
    bits = np.zeros(len(calls.caller), dtype=np.int64)
    names: list[dict[str, str]] = []
    for number, stage in enumerate(stages):
        mine = calls.pool == number
        inputs[mine], outputs[mine] = stage.input_tokens[calls.caller[mine]], stage.output_tokens[calls.caller[mine]]
        if node is not None and not stage.shares_prefixes:
            node[mine] = -1
        names.append({})
        for name, members in apart(rows, mine):
            names[-1][name] = f"{stage.pool} {name}"
            bits |= np.where(members, 1 << len(classes), 0)
            classes.append(names[-1][name])
    rows = replace(rows, input_tokens=inputs, output_tokens=outputs, prefix_node=node)
    rows = replace(rows, class_bits=bits.astype(np.int32), classes=tuple(classes))
    check_told_apart(rows)
    return rows, names


def apart(rows: Trace, mine: npt.NDArray[np.bool_]) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
    """What is told apart in a pool: all its calls, their traffic classes, and priorities where there are several."""
    yield ALL, mine
    bits = np.zeros(len(mine), dtype=np.int64) if rows.class_bits is None else rows.class_bits
    for index, name in enumerate(rows.classes):
        yield name, mine & (bits >> index & 1 > 0)
    levels = [] if rows.priority is None else np.unique(rows.priority[mine]).tolist()
    if rows.priority is not None and len(levels) > 1:
        for level in levels:
            yield f"priority {level}", mine & (rows.priority == level)


def side_by_side(fleets: Sequence[Fleet]) -> Fleet:
    """The fleets as pools of one."""
    groups = (replace(group, pool=number) for number, fleet in enumerate(fleets) for group in fleet.groups)
    return Fleet(groups=tuple(groups), router=fleets[0].router, scrape_s=fleets[0].scrape_s)


def sent_to(record: RunRecord, calls: Calls, number: int) -> Buffer:
    """The calls to one pool that were sent, in order of arrival, at equal times of their requests."""
    if record.turmoil is None:
        raise ValueError("a replay of several pools has a world")
    rows = np.flatnonzero((calls.pool == number) & (record.turmoil.attempt_count > 0))
    return rows[np.lexsort((calls.caller[rows], record.arrival_s[rows]))]


def part_of(record: RunRecord, sent: Buffer, replicas: slice, names: Mapping[str, str]) -> RunRecord:
    """The record of the calls to one pool, with the gauges of its replicas and the gaps of its classes."""
    none = ClassGaps(gaps=record.gaps, peak_gaps=record.peak_gaps)  # where nobody calls, nothing is told apart
    gaps = {name: record.class_gaps.get(joint, none) for name, joint in names.items()}
    everybody: ClassGaps = gaps.pop(ALL)
    here = requests_of(record, sent)
    return replace(
        here,
        replica=np.where(here.replica < 0, -1, here.replica - replicas.start).astype(np.int32),
        gaps=everybody.gaps,
        peak_gaps=everybody.peak_gaps,
        class_gaps=gaps,
        replica_count=replicas.stop - replicas.start,
        telemetry=None if record.telemetry is None else gauges_of(record.telemetry, replicas),
        turmoil=None if here.turmoil is None else turmoil_of(here, here.turmoil, replicas),
    )


def gauges_of(telemetry: Telemetry, replicas: slice) -> Telemetry:
    """The gauges of some replicas."""
    done = {name: getattr(telemetry.done, name)[:, replicas] for name in WorkDone.__slots__}
    return replace(
        telemetry,
        running=telemetry.running[:, replicas],
        waiting=telemetry.waiting[:, replicas],
        kv_used_fraction=telemetry.kv_used_fraction[:, replicas],
        active_tokens=telemetry.active_tokens[:, replicas],
        state=None if telemetry.state is None else telemetry.state[:, replicas],
        done=WorkDone(**done),
    )


def turmoil_of(record: RunRecord, turmoil: Turmoil, replicas: slice) -> Turmoil:
    """What happened to the replicas and the calls of one pool. Nobody comes back, so each call ended once."""
    ended = {status: int((record.status == status).sum()) for status in Status}
    refused = [status for status in Status if status.name.startswith("REJECTED") and status != Status.REJECTED_TOO_LONG]
    decisions = (
        replace(each, replicas=tuple(number - replicas.start for number in numbers))
        for each in turmoil.decisions
        if (numbers := [number for number in each.replicas if replicas.start <= number < replicas.stop])
    )
    return replace(
        turmoil,
        refused_count=sum(ended[status] for status in refused),
        lost_count=ended[Status.LOST],
        cancelled_count=ended[Status.CANCELLED],
        timed_out_count=ended[Status.TIMED_OUT],
        wasted_output_tokens=int(turmoil.partial_output_tokens.sum(dtype=np.int64)),
        state_s=turmoil.state_s[replicas],
        decisions=tuple(decisions),
        spells=tuple(
            replace(each, replica=each.replica - replicas.start)
            for each in turmoil.spells
            if replicas.start <= each.replica < replicas.stop
        ),
    )


def called(record: RunRecord, trace: Trace, stage: Call, caller: Buffer) -> Served:
    """The calls as a trace, their record with the classes of their requests."""
    calls = replace(
        rows_of(trace, caller),
        arrival_s=record.arrival_s,
        input_tokens=record.input_tokens,
        output_tokens=record.output_tokens,
        kv_delivered=None,
    )
    if not stage.shares_prefixes:
        calls = replace(calls, prefix_node=None, prefixes=None)
    record = replace(record, class_bits=calls.class_bits, classes=calls.classes)
    return Served(calls=calls, caller=caller, record=record)
