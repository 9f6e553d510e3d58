"""One pass of requests through their stages, pool after pool.

Stages feed forward: what a pool does changes nothing in those before it. So each pool is replayed on its own, with
the arrivals that the stages before it yield. What comes back all the same stands in a script.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field, replace
from itertools import pairwise
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import ClassGaps, GapHistogram, RunRecord, Status
from tokenfleet.domain.stages import Call, Gate, Hold, Part, PoolRun, Pools, Transfer, Wait
from tokenfleet.domain.trace import Bools, Trace, rows_of
from tokenfleet.domain.world import World
from tokenfleet.simulator.building import PS_PER_S, to_ps
from tokenfleet.simulator.classes import combinations
from tokenfleet.simulator.gathering import Worlds
from tokenfleet.simulator.gating import Doorkeeper, Entrance, Turn
from tokenfleet.simulator.joining import Journey, added
from tokenfleet.simulator.replaying import LANES, replay
from tokenfleet.simulator.together import Served, Together
from tokenfleet.simulator.watching import Watched

Buffer = npt.NDArray[np.int64]
Window = tuple[float, float]
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Script:
    """What later stages do to earlier ones, as a replay before found it."""

    arrivals_ps: Buffer
    """-1 for requests that have not been sent by then."""
    turns: Mapping[str, tuple[Turn, ...]]
    """When the door of each gate moves."""
    ends_ps: Buffer
    """When each request ends; -1 where that is not known."""


@dataclass(frozen=True, slots=True)
class Bridges:
    """Gaps between a token that a user saw of an earlier pool and the first one of this."""

    gaps_ps: Buffer
    ends_ps: Buffer
    rows: Buffer
    """Whose."""

    def of(self, chosen: npt.NDArray[np.bool_]) -> "Bridges":
        """Some of them."""
        return Bridges(self.gaps_ps[chosen], self.ends_ps[chosen], self.rows[chosen])


@dataclass(slots=True, kw_only=True)
class Passage:
    """What became of the requests in one pass."""

    journey: Journey
    runs: dict[str, PoolRun] = field(default_factory=dict)
    entrances: dict[str, Entrance] = field(default_factory=dict)
    watched: dict[str, Watched] = field(default_factory=dict)
    """Pools that stand behind a gate."""


class Passing:
    """Takes all requests through their stages once.

    Args:
        trace: The requests.
        pools: The stages, checked.
        worlds: What happens around each pool.
        script: What comes back.
        peak_window_s: As for :func:`tokenfleet.simulator.replaying.replay`.
        telemetry_interval_s: As there.
        replayed: Replays one pool, with the arguments of that function.
        at_once: What became of the calls to all pools, where that is known.
    """

    def __init__(
        self,
        trace: Trace,
        pools: Pools,
        worlds: Worlds,
        script: Script,
        *,
        peak_window_s: Window | None = None,
        telemetry_interval_s: float | None = None,
        replayed: Callable[..., RunRecord] = replay,
        at_once: Together | None = None,
    ) -> None:
        self.replayed = replayed
        self.trace, self.pools, self.worlds, self.script = trace, pools, worlds, script
        self.peak_window_s, self.telemetry_interval_s = peak_window_s, telemetry_interval_s
        gates = [stage for stage in pools.stages if isinstance(stage, Gate)]
        self.ticks_s = {name: gate.tick_s for gate in gates for name in gate.watched}
        self.answers = smaller_answers(pools)
        self.done = Passage(journey=start(script.arrivals_ps))
        self.parts = {} if at_once is None else at_once.parts
        self.has_lanes = at_once is not None and at_once.has_lanes

    def run(self) -> Passage:
        """Stage after stage."""
        journey = self.done.journey
        for stage in self.pools.stages:
            going = (
                takers(stage, journey.moved, self.answers)
                & (journey.status == Status.FINISHED)
                & (self.script.arrivals_ps >= 0)
            )
            if isinstance(stage, Wait):
                journey.now_ps[going] += to_ps_column(stage.duration_s[going])
            elif isinstance(stage, Hold):
                journey.now_ps[going] += until_open_ps(journey.now_ps[going], stage)
            elif isinstance(stage, Transfer):
                send(journey, stage, going)
            elif isinstance(stage, Gate):
                self._enter(stage, np.flatnonzero(going))
            else:
                self._call(stage, going)
        if self.has_lanes:
            self.done.runs = {name: called_by_lane(run) for name, run in self.done.runs.items()}
        return self.done

    def _enter(self, gate: Gate, rows: Buffer) -> None:
        journey = self.done.journey
        keeper = Doorkeeper(gate, self.trace, self.script.turns.get(gate.name, ()), self.script.ends_ps)
        entrance = keeper.let_in(rows, journey.now_ps[rows])
        self.done.entrances[gate.name] = entrance
        journey.now_ps[rows] = entrance.time_ps[rows]
        journey.status = np.maximum(journey.status, entrance.status)
        if gate.smaller is not None:
            journey.moved[entrance.is_moved] = 1 + self.answers.index(gate.smaller_answer)

    def _call(self, stage: Call, going: npt.NDArray[np.bool_]) -> None:
        journey, name = self.done.journey, stage.pool
        part = self.parts[name] if name in self.parts else self._served(stage, going)
        calls, caller, record = part.calls, part.caller, part.record
        before = sum(run.record.replica_count for run in self.done.runs.values())
        bridges = arrive(journey, stage, calls, record, caller, before)
        gaps, peak_gaps = seen_gaps(stage, record, bridges, self.peak_window_s)
        if stage.is_seen and self.telemetry_interval_s is not None:
            apart = seen_class_gaps(self.trace, calls, record, bridges, self.peak_window_s)
        else:
            apart = {}
        self.done.runs[name] = PoolRun(
            trace=calls,
            record=record,
            caller=caller.astype(np.int32),
            gaps=gaps,
            peak_gaps=peak_gaps,
            class_gaps=apart,
        )

    def _served(self, stage: Call, going: npt.NDArray[np.bool_]) -> Served:
        """What a pool makes of the calls to it, replayed on its own."""
        name, fleet = stage.pool, self.pools.fleets[stage.pool]
        calls, caller = calls_of(self.trace, self.done.journey, stage, going)
        world = self._world(name, calls)
        try:
            record = self.replayed(
                calls,
                announced(fleet) if stage.is_announced else fleet,
                peak_window_s=self.peak_window_s,
                telemetry_interval_s=self.telemetry_interval_s,
                world=world,
            )
        except BadInput as error:
            named = (replace(each, where=f"{name}: {each.where}") for each in error.problems)
            raise BadInput(named) from None
        return Served(calls=calls, caller=caller, record=record)

    def _world(self, name: str, calls: Trace) -> World | None:
        """The world around a pool, watched where it stands behind a gate."""
        world, tick_s = self.worlds(name, calls), self.ticks_s.get(name)
        self.has_lanes |= world is not None and world.lane is not None
        if tick_s is None:
            return world
        if world is not None and world.controller is not None and world.tick_s != tick_s:
            what = f"its controller looks every {world.tick_s:g} s, that of the gate every {tick_s:g} s"
            raise BadInput.at("world.tick_s", what, "give both the same tick")
        self.done.watched[name] = Watched(world or World(), self.pools.fleets[name])
        return self.done.watched[name].in_view(tick_s)


def smaller_answers(pools: Pools) -> list[str]:
    """The answers to which gates may send requests."""
    gates = [stage for stage in pools.stages if isinstance(stage, Gate) and stage.smaller is not None]
    return list(dict.fromkeys(gate.smaller_answer for gate in gates))


def takers(stage: Part, moved: Buffer, answers: Sequence[str]) -> Bools:
    """Requests that take a stage, as gates have sent them.

    Args:
        stage: The stage.
        moved: Of each request, see :class:`tokenfleet.simulator.joining.Journey`.
        answers: The smaller ones in their order.
    """
    if stage.answer is None or not answers:
        return stage.takes
    here = moved == 1 + answers.index(stage.answer) if stage.answer in answers else np.zeros(len(moved), dtype=np.bool_)
    return np.where(moved > 0, here & stage.instead if stage.instead is not None else False, stage.takes)


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


def start(arrivals_ps: Buffer) -> Journey:
    """Everybody at the door."""
    count = len(arrivals_ps)

    def column(value: int = 0) -> Buffer:
        return np.full(count, value, dtype=np.int64)

    return Journey(
        now_ps=arrivals_ps.copy(),
        status=np.zeros(count, dtype=np.int8),
        first_ps=column(-1),
        last_ps=column(-1),
        replica=column(),
        sender=column(),
        cached_tokens=column(),
        preemption_count=column(),
        transfer_ps=column(),
        moved=column(),
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
    journey: Journey, stage: Call, calls: Trace, record: RunRecord, rows: Buffer, replicas_before: int
) -> Bridges:
    """Move the requests of a pool to the end of its answer, or to where it came to nothing.

    ``rows`` are the requests behind the calls; the calls of one follow each other.
    """
    # Numpy's own ``ufunc.at`` takes several times as long as to replay these calls.
    firsts = np.flatnonzero(np.diff(rows, prepend=-1))
    called = rows[firsts]

    def of_each(combine: np.ufunc, column: npt.NDArray[Any]) -> npt.NDArray[Any]:
        return combine.reduceat(column, firsts) if len(firsts) < len(rows) else column

    journey.status[called] = np.maximum(journey.status[called], of_each(np.maximum, record.status))
    sent_to = record.replica.astype(np.int64)
    journey.replica[rows] = np.where(sent_to < 0, -1, sent_to + replicas_before)
    journey.sender[rows] = journey.replica[rows]
    journey.preemption_count[called] += of_each(np.add, record.preemption_count)
    if stage.shares_prefixes:
        journey.cached_tokens[called] += of_each(np.add, record.cached_tokens)
    ended = record.status == Status.FINISHED
    finish_ps = to_ps_column(record.finish_s)
    # In a quiet pool only those that no replica could ever serve come to nothing, at once.
    nothing_s = calls.arrival_s if record.turmoil is None else record.turmoil.left_s
    over_ps = of_each(np.maximum, np.where(ended, finish_ps, to_ps_column(nothing_s)))
    journey.now_ps[called] = np.maximum(journey.now_ps[called], over_ps)
    first_ps = to_ps_column(record.first_token_s)
    speaks = ended & (first_ps >= 0) & stage.is_seen
    rows, first_ps = rows[speaks], first_ps[speaks]
    known = journey.last_ps[rows] >= 0
    gaps_ps = first_ps[known] - journey.last_ps[rows[known]]
    fresh = rows[~known]
    journey.first_ps[fresh] = first_ps[~known]
    journey.last_ps[rows] = finish_ps[speaks]
    return Bridges(gaps_ps, first_ps[known], rows[known])


def seen_gaps(
    stage: Call, record: RunRecord, bridges: Bridges, peak_window_s: Window | None
) -> tuple[GapHistogram | None, GapHistogram | None]:
    """What users see of the gaps of a pool, over the whole run and in the peak window."""
    if not stage.is_seen:
        return None, None
    return with_bridges(ClassGaps(gaps=record.gaps, peak_gaps=record.peak_gaps), bridges, peak_window_s)


def with_bridges(
    own: ClassGaps, bridges: Bridges, peak_window_s: Window | None
) -> tuple[GapHistogram, GapHistogram | None]:
    """Gaps of a pool, and those that end with its first tokens after the last ones of another."""
    if peak_window_s is None or own.peak_gaps is None:
        return added([own.gaps], bridges.gaps_ps), None
    inside = (bridges.ends_ps >= to_ps(peak_window_s[0])) & (bridges.ends_ps < to_ps(peak_window_s[1]))
    return added([own.gaps], bridges.gaps_ps), added([own.peak_gaps], bridges.gaps_ps[inside])


def seen_class_gaps(
    trace: Trace, calls: Trace, record: RunRecord, bridges: Bridges, peak_window_s: Window | None
) -> dict[str, ClassGaps]:
    """What users see of the gaps of a pool, by the traffic classes and priorities of all requests."""
    everybody, here, own_names = combinations(trace), combinations(calls), lane_names(record)
    nothing = ClassGaps(gaps=added([]), peak_gaps=None if record.peak_gaps is None else added([]))
    found = {}
    for name, numbers in everybody.names.items():
        own = record.class_gaps.get(own_names.get(name, name), nothing)
        if name not in here.names and calls.request_count and name == f"priority {only_level(calls)}":
            # Calls of one priority are not told apart in their pool.
            own = ClassGaps(gaps=record.gaps, peak_gaps=record.peak_gaps)
        gaps, peak_gaps = with_bridges(own, bridges.of(np.isin(everybody.of[bridges.rows], numbers)), peak_window_s)
        found[name] = ClassGaps(gaps=gaps, peak_gaps=peak_gaps)
    return found


def lane_names(record: RunRecord) -> Mapping[str, str]:
    """What the two priorities are called in a record of requests in lanes."""
    return {name: lane for name, lane in LANES.items() if lane in record.class_gaps}


def called_by_lane(run: PoolRun) -> PoolRun:
    """The run of a pool with the lanes named; where one pool has lanes, the priorities of all pools stand for them."""
    return replace(run, class_gaps={LANES.get(name, name): gaps for name, gaps in run.class_gaps.items()})


def only_level(calls: Trace) -> int | None:
    """The priority of all calls; ``None`` where there are several, or none."""
    levels = [] if calls.priority is None else np.unique(calls.priority).tolist()
    return levels[0] if len(levels) == 1 else None
