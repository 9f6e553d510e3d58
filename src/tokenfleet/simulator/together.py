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
    Telemetry,
    Turmoil,
    WorkDone,
    requests_of,
)
from tokenfleet.domain.stages import Call, Pools
from tokenfleet.domain.trace import Floats, Trace, rows_of
from tokenfleet.domain.world import ClosedLoop, World
from tokenfleet.simulator.building import to_ps
from tokenfleet.simulator.checking import check
from tokenfleet.simulator.checking_sharing import check_told_apart
from tokenfleet.simulator.gathering import Worlds, gathered
from tokenfleet.simulator.replaying import LANES, attempts_of, busy_time, check_times, run_in
from tokenfleet.simulator.ways import Calls, calls_of_all, rows_of_calls

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
class Together:
    """What became of all pools."""

    parts: Mapping[str, Served]
    """By the name of the pool."""
    arrival_s: Floats
    """When each request came; NaN for those that were never sent."""
    has_lanes: bool
    """Whether batch waited for any pool in a lane of its own."""


def together(
    trace: Trace,
    pools: Pools,
    worlds: Worlds,
    peak_window_s: tuple[float, float] | None,
    telemetry_interval_s: float | None,
    *,
    users: ClosedLoop | None = None,
    read_tokens_per_s: float | None = None,
) -> Together:
    """Replay all pools at once.

    Args:
        trace: The requests.
        pools: A checked system of which some pools share gpus: calls, and waits between them.
        worlds: The world around each pool.
        peak_window_s: As for :func:`tokenfleet.simulator.replaying.replay`.
        telemetry_interval_s: As there.
        users: Who waits for the answer to whom; ``None``: all come by the clock.
        read_tokens_per_s: What users read of the answers that they see; ``None``: as fast as tokens come.

    Raises:
        BadInput: A pool cannot be replayed beside the others.
    """
    stages = [stage for stage in pools.stages if isinstance(stage, Call)]
    calls = calls_of_all(trace, pools, users)
    rows = rows_of_calls(trace, stages, calls)
    fleet = side_by_side([pools.fleets[stage.pool] for stage in stages])
    around = gathered(worlds, [stage.pool for stage in stages], rows, calls, fleet)
    world = replace(around or World(), calls=np.maximum(calls.pool, 0).astype(np.int32), closed_loop=calls.loop)
    if users is not None and read_tokens_per_s is not None:
        seen = [number for number, stage in enumerate(stages) if stage.is_seen]
        clients = replace(world.clients, read_tokens_per_s=read_tokens_per_s)
        world = replace(world, clients=clients, closed_loop=replace(calls.loop, unread=~np.isin(calls.pool, seen)))
    if world.lane is not None and world.batch is not None:
        rows = replace(rows, priority=world.batch.astype(np.int32))
    rows, names = told_apart(rows, stages, calls)
    check(rows, fleet, world)
    # Without telemetry nobody counts pool by pool.
    interval_s = telemetry_interval_s or max(1.0, rows.duration_s)
    check_times(rows, peak_window_s, interval_s)
    run = run_in(world, rows, fleet, peak_window_s, to_ps(interval_s))
    record = run.record
    parts, first = {}, 0
    for number, stage in enumerate(stages):
        mine = slice(first, first + sum(group.replica_count for group in pools.fleets[stage.pool].groups))
        sent = sent_to(record, calls, number)
        own = part_of(record, sent, mine, named_by_lane(names[number], world))
        own = replace(own, busy=busy_time(run.replicas[mine]))
        own = own if telemetry_interval_s is not None else replace(own, telemetry=None, ledger=None, class_gaps={})
        own = replace(own, turmoil=None if around is None else turmoil_of(record, sent, mine, run.pools[[number]]))
        parts[stage.pool] = called(own, trace, stage, calls.caller[sent])
        first = mine.stop
    arrival_s = trace.arrival_s.copy()
    if users is not None:
        arrival_s[calls.caller[calls.opens]] = record.arrival_s[calls.opens]
    return Together(parts=parts, arrival_s=arrival_s, has_lanes=world.lane is not None)


def told_apart(rows: Trace, stages: Sequence[Call], calls: Calls) -> tuple[Trace, list[dict[str, str]]]:
    """Calls whose classes tell the pools apart, too; and what these are called, pool by pool."""
    classes: list[str] = []
    bits = np.zeros(len(calls.caller), dtype=np.int64)
    names: list[dict[str, str]] = []
    for number, stage in enumerate(stages):
        mine = calls.pool == number
        names.append({})
        for name, members in apart(rows, mine):
            names[-1][name] = f"{stage.pool} {name}"
            bits |= np.where(members, 1 << len(classes), 0)
            classes.append(names[-1][name])
    # A mark has no gaps, and is of a class that there is anyway.
    bits[~calls.is_call] = bits[calls.likeness]
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


def named_by_lane(names: dict[str, str], world: World) -> dict[str, str]:
    """What is told apart, with the lanes by their names."""
    return names if world.lane is None else {LANES.get(name, name): joint for name, joint in names.items()}


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


def turmoil_of(record: RunRecord, sent: Buffer, replicas: slice, pool: Buffer) -> Turmoil | None:
    """What happened to the replicas and the calls of one pool."""
    turmoil = requests_of(record, sent).turmoil
    if turmoil is None:
        return None
    decisions = (
        replace(each, replicas=tuple(number - replicas.start for number in numbers))
        for each in turmoil.decisions
        if (numbers := [number for number in each.replicas if replicas.start <= number < replicas.stop])
    )
    return replace(
        turmoil,
        **attempts_of(pool),
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
