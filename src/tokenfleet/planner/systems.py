"""The pools of a plan as one system, replayed together: what users see of all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import Protocol

import numpy as np
import numpy.typing as npt

from tokenfleet import simulator
from tokenfleet.contract import judged_in_parts
from tokenfleet.domain.fleet import Fleet, ReplicaGroup, Router
from tokenfleet.domain.plan import PlannedPool, PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord, Turmoil, requests_of
from tokenfleet.domain.slo import Slo
from tokenfleet.domain.stages import Call, Gate, Handover, Pools, StagedRun
from tokenfleet.domain.survival import Zone
from tokenfleet.domain.trace import Bools, Trace, rows_of
from tokenfleet.domain.ways import Takes
from tokenfleet.domain.world import World
from tokenfleet.planner.early import Hopeless
from tokenfleet.planner.lodging import housed
from tokenfleet.planner.recalling import Recall, anew
from tokenfleet.planner.replays import Replays, with_step_factor
from tokenfleet.planner.spread import Recalling, Replay, recall_of, unkept
from tokenfleet.planner.traffic import Traffic
from tokenfleet.planner.verdict import Verdict

Longs = npt.NDArray[np.int64]


def members_of(trace: Trace, takes: Takes | None) -> Bools:
    """The requests that a pool answers; of ``None`` all."""
    found: Bools = np.ones(trace.request_count, dtype=np.bool_)
    if takes is None:
        return found
    if takes.input_over_tokens is not None:
        found &= trace.input_tokens > takes.input_over_tokens
    if takes.input_up_to_tokens is not None:
        found &= trace.input_tokens <= takes.input_up_to_tokens
    if takes.label is not None:
        seen = trace.observed
        known = seen is not None and seen.label is not None and takes.label in seen.labels
        found &= seen.label == seen.labels.index(takes.label) if known and seen is not None else False
    if takes.priority is not None:
        found &= (0 if trace.priority is None else trace.priority) == takes.priority
    return found


def pools_of(
    trace: Trace, takes: Mapping[str, Takes | None], fleets: Mapping[str, Fleet], handover: Handover | None
) -> Pools:
    """The stages of every request: one pool answers it, or one after the other where there is a ``handover``.

    Args:
        trace: The requests.
        takes: Which of them each pool answers, by its name; every request is one pool's.
        fleets: By the same names.
        handover: How KV gets from the first pool, which prefills, to the second; ``None``: pools side by side.
    """
    if handover is not None:
        stages = simulator.apart_stages(trace, members_of(trace, None), dict(fleets), handover)
        return Pools(fleets=fleets, stages=stages)
    calls = tuple(
        Call(
            pool=name,
            takes=members_of(trace, each),
            input_tokens=trace.input_tokens,
            output_tokens=trace.output_tokens,
            shares_prefixes=True,
        )
        for name, each in takes.items()
    )
    return Pools(fleets=fleets, stages=calls)


class Way(Protocol):
    """How requests go through pools that somebody named."""

    def through(self, trace: Trace, fleets: Mapping[str, Fleet], /) -> tuple[Trace, Pools]:
        """The requests as they are sent, and their stages with these fleets, for all of a demand or a part of it."""

    asked: str | None
    """All that it hangs on but for the demand, as text; ``None`` where no text says it."""

    @property
    def has_lanes(self) -> bool:
        """Whether batch waits in lanes of its own."""

    def world(self, name: str, calls: Trace, /) -> World | None:
        """What is around a pool at all times; ``None``: nothing."""

    def who_waits(self, trace: Trace, /) -> Bools | None:
        """Which requests of a demand somebody waits for; ``None``: all of them."""

    def waited_for(self, trace: Trace, run: StagedRun, among: Bools | None = None, /) -> RunRecord | None:
        """Of a run of ``trace`` the requests, of these or of all, that somebody waits for; ``None``: all of them."""

    def of_copies(self, trace: Trace, made: Trace, rows: Longs, /) -> "Way":
        """The way of ``made``, each of whose requests goes where the one of ``trace`` does whose copy it is.

        Args:
            trace: A demand.
            made: Another one, of requests as long as those they are copies of.
            rows: The row of ``trace`` of each of them.
        """


@dataclass(frozen=True, slots=True)
class SizedPool:
    """One pool that was sized."""

    name: str
    takes: Takes | None
    """Which requests come to it; ``None``: all."""
    sized: Sized
    router: Router

    @property
    def host(self) -> str:
        """The pool whose GPUs it stands on: itself, or another."""
        return self.sized.beside or self.name


@dataclass(frozen=True, slots=True)
class System:
    """Pools that were sized, and how requests go through them."""

    parts: tuple[SizedPool, ...]
    handover: Handover | None
    way: Way | None = None
    """``None``: each request has one pool that takes it, or all go through both where there is a ``handover``."""

    @property
    def own(self) -> tuple[SizedPool, ...]:
        """The pools with GPUs of their own; those beside them have as many replicas as they have."""
        return tuple(part for part in self.parts if part.sized.beside is None)

    @property
    def price_usd_per_hour(self) -> float:
        """What all of them cost for one hour."""
        return sum(part.sized.price_usd_per_hour for part in self.parts)

    def fleets(self, *, spare: bool, power: int = 0) -> dict[str, Fleet]:
        """Each pool's fleet, with its spare replicas or without, steps as long as their band to a power makes them."""
        return {part.name: _fleet(part, spare=spare, power=power) for part in self.parts}

    def with_kinds(self, change: Callable[[Sized], Sized]) -> "System":
        """The same pools with other replicas, or other numbers of them."""
        return replace(self, parts=tuple(replace(part, sized=change(part.sized)) for part in self.parts))

    def with_fleets(self, fleets: Sequence[Sized]) -> "System":
        """The same pools with a fleet of any kind each."""
        parts = (replace(part, sized=sized) for part, sized in zip(self.parts, fleets, strict=True))
        return replace(self, parts=tuple(parts))

    def with_counts(self, counts: Sequence[int]) -> "System":
        """The same pools with so many carrying replicas for each of :attr:`own`."""
        known = {part.name: count for part, count in zip(self.own, counts, strict=True)}
        return self.with_fleets([replace(part.sized, carrying_count=known[part.host]) for part in self.parts])

    def through(self, trace: Trace, fleets: Mapping[str, Fleet]) -> tuple[Trace, Pools]:
        """The requests as they are sent, and their stages with these fleets."""
        if self.way is not None:
            return self.way.through(trace, fleets)
        return trace, pools_of(trace, {part.name: part.takes for part in self.parts}, fleets, self.handover)

    def asked(self, *, spare: bool) -> object | None:
        """All that a replay of these pools hangs on, but for the demand; ``None`` where nothing says it."""
        way = self.handover if self.way is None else self.way.asked
        if way is None and self.way is not None:
            return None
        parts = (
            (part.name, part.takes, part.router, part.sized.beside, fleet)
            for part, fleet in zip(self.parts, self.fleets(spare=spare).values(), strict=True)
        )
        return way, tuple(parts)

    def recall(self, replay: Replay) -> Recall:
        """What is kept beside a replay, of the carrying replicas of these pools."""
        known, pools = recall_of(replay), self.asked(spare=False)
        if pools is None or known is anew:
            return anew
        return lambda name, asked, make: known(name, (pools, asked), make)

    def in_place(self, name: str, replay: Replay) -> "InPlace":
        """Replays of one pool beside the carrying replicas of the others."""
        others = self.fleets(spare=False)
        hosted = {part.name for part in self.parts if part.sized.beside == name}

        def system(trace: Trace, fleet: Fleet) -> tuple[Trace, Pools]:
            count = sum(group.replica_count for group in fleet.groups)
            beside = {each: _of_count(others[each], count) for each in hosted}
            return self.through(trace, {**others, **beside, name: fleet})

        own = self.recall(replay)
        recall = own if own is anew else lambda what, asked, make: own(what, (name, asked), make)
        return InPlace(name, system, replay, recall)

    def counts_apart(self, slo: Slo) -> bool:
        """Whether a replay must count the gaps of classes or lanes apart to be held against a promise."""
        return slo.gaps_apart_in(has_lane=self.way is not None and self.way.has_lanes)

    def judged(self, replays: Replays, traffic: Traffic, *, spare: bool = False) -> Verdict:
        """The promise with the spare replicas of every pool gone, or there."""
        asked = self.asked(spare=spare)
        found = partial(self._judged, replays, traffic, spare=spare)
        return found() if asked is None else replays.remembered("verdict of pools", (traffic, asked), found)

    def _judged(self, replays: Replays, traffic: Traffic, *, spare: bool) -> Verdict:
        # Gaps are counted class by class along with telemetry: one sample of it is enough.
        interval_s = max(1.0, traffic.trace.duration_s) if self.counts_apart(replays.slo) else None
        run = self.replayed(replays, traffic, spare=spare, telemetry_interval_s=interval_s)
        return self.verdict(replays, traffic, run)

    def verdict(
        self,
        replays: Replays,
        traffic: Traffic,
        run: StagedRun,
        *,
        low: StagedRun | None = None,
        high: StagedRun | None = None,
        first_token_factor: float = 1.0,
    ) -> Verdict:
        """As :func:`verdict_of`."""
        runs = run, low, high
        return verdict_of(self.way, replays, traffic, runs, first_token_factor=first_token_factor)

    def replayed(
        self,
        replays: Replays,
        traffic: Traffic,
        *,
        spare: bool,
        power: int = 0,
        telemetry_interval_s: float | None = None,
        worlds: Mapping[str, World] | None = None,
        gate: Gate | None = None,
        is_kept: bool = False,
    ) -> StagedRun:
        """Replays the traffic through all pools, in quiet times or each in a world of its own, or behind a ``gate``.

        ``is_kept``: the same will be asked for again, not what it comes to alone.
        """
        around, way = worlds or {}, self.way
        replays.count += len(self.parts)
        trace, pools = self.through(traffic.trace, self.fleets(spare=spare, power=power))
        if gate is not None:
            pools = replace(pools, stages=(gate, *pools.stages))

        def world(name: str, calls: Trace) -> World | None:
            usual = replays.door if way is None else way.world(name, calls) or replays.door
            return with_lane_of(usual, around.get(name))

        return simulator.replay_stages(
            trace,
            pools,
            peak_window_s=traffic.window_s,
            telemetry_interval_s=telemetry_interval_s,
            worlds=world,
            run=replays.replay if is_kept else unkept(replays.replay),
        )


def with_lane_of(usual: World | None, happens: World | None) -> World | None:
    """What happens around a pool, where anything does, with the lane for batch that it has at all times."""
    if usual is None or happens is None:
        return happens or usual
    return replace(happens, batch=usual.batch, lane=usual.lane)


def seen_of(way: Way | None, traffic: Traffic, run: StagedRun) -> RunRecord:
    """Of a run of a demand the requests that somebody waits for."""
    waited_for = None if way is None else way.waited_for(traffic.trace, run)
    return run.record if waited_for is None else waited_for


def verdict_of(
    way: Way | None,
    replays: Replays,
    traffic: Traffic,
    runs: tuple[StagedRun, StagedRun | None, StagedRun | None],
    *,
    first_token_factor: float = 1.0,
    among: Bools | None = None,
) -> Verdict:
    """The promise to those who wait, and its deadlines to all; with its range at both ends of the error band.

    Args:
        way: How requests go through pools that somebody named; ``None``: nobody did.
        replays: Judges.
        traffic: What was replayed.
        runs: As predicted, and with the shortest and the longest steps of the error band where they were replayed.
        first_token_factor: Error band of first tokens.
        among: The requests that are asked after; ``None``: all.
    """
    run, low, high = runs

    def judged(slo: Slo, everybody: bool) -> Verdict:
        def of(each: StagedRun) -> RunRecord:
            waited_for = None if way is None or everybody else way.waited_for(traffic.trace, each, among)
            if waited_for is not None:
                return waited_for
            return each.record if among is None else requests_of(each.record, among)

        return Replays(slo, replays.router, clients=replays.clients).judged(
            traffic,
            of(run),
            low=None if low is None else of(low),
            high=None if high is None else of(high),
            first_token_factor=first_token_factor,
        )

    of_all = judged(replays.slo, False)
    if way is None or way.waited_for(traffic.trace, run) is None:
        return of_all
    return replace(
        of_all,
        peak=judged_in_parts(replays.slo, lambda slo, everybody: judged(slo, everybody).peak),
        overall=judged_in_parts(replays.slo, lambda slo, everybody: judged(slo, everybody).overall),
    )


def _fleet(part: SizedPool, *, spare: bool, power: int) -> Fleet:
    sized, replica = part.sized, part.sized.replica
    if power:
        replica = with_step_factor(replica, replica.band.step_time_factor**power)
    count = sized.replica_count if spare else sized.carrying_count
    return Fleet(groups=(ReplicaGroup(replica=replica, replica_count=count),), router=part.router)


def _of_count(fleet: Fleet, count: int) -> Fleet:
    return replace(fleet, groups=tuple(replace(group, replica_count=count) for group in fleet.groups))


def system_of(pools: Sequence[PlannedPool], handover: Handover | None = None, way: Way | None = None) -> System:
    """The pools of a plan."""
    return System(tuple(_part(pool) for pool in pools), handover, way)


def _part(pool: PlannedPool) -> SizedPool:
    fleet, (sized,) = pool.plan.fleet, pool.plan.fleets
    if fleet is None:
        raise ValueError(f"the pool {pool.name} has no fleet")
    return SizedPool(pool.name, pool.takes, sized, fleet.router)


def housed_in(system: System, question: PlanQuestion) -> tuple[System, dict[str, tuple[Zone, ...]]] | None:
    """The pools with their spare replicas, all of them in the zones that there are, and these as each of them has them.

    Returns:
        ``None`` where zones or quota have no room for all of them; see :func:`tokenfleet.planner.lodging.housed`.
    """
    found = housed([part.sized for part in system.own], question)
    if found is None:
        return None
    known = dict(zip((part.name for part in system.own), found, strict=True))
    spare = {name: sized.spare_count for name, (sized, _) in known.items()}
    fleets = [replace(part.sized, spare_count=spare[part.host]) for part in system.parts]
    return system.with_fleets(fleets), {part.name: known[part.host][1] for part in system.parts}


@dataclass(frozen=True, slots=True)
class Proof:
    """A system on the whole traffic, judged with the range of its error band."""

    run: StagedRun
    verdict: Verdict


def proof(system: System, replays: Replays, traffic: Traffic, *, spare: bool, telemetry_interval_s: float) -> Proof:
    """Replays a system as predicted, and with the steps of all pools at either end of their error bands."""
    apart_s = telemetry_interval_s if system.counts_apart(replays.slo) else None
    run = system.replayed(replays, traffic, spare=spare, telemetry_interval_s=telemetry_interval_s, is_kept=True)
    factor = max(part.sized.replica.band.first_token_factor for part in system.parts)

    def judged() -> Verdict:
        low, high = (
            system.replayed(replays, traffic, spare=spare, power=power, telemetry_interval_s=apart_s)
            for power in (-1, 1)
        )
        return system.verdict(replays, traffic, run, low=low, high=high, first_token_factor=factor)

    asked = system.asked(spare=spare)
    verdict = judged() if asked is None else replays.recalled("proof of pools", (traffic, asked), judged)
    return Proof(run, verdict)


def requests_of_pool(trace: Trace, takes: Takes | None) -> Trace:
    """The requests that come to a pool."""
    return trace if takes is None else rows_of(trace, members_of(trace, takes))


def in_place(
    name: str,
    takes: Mapping[str, Takes | None],
    fleets: Mapping[str, Fleet],
    handover: Handover | None,
    replay: Replay,
) -> Replay:
    """Replays of one pool among others, which have the fleets given; see :class:`InPlace`."""

    def system(trace: Trace, fleet: Fleet) -> tuple[Trace, Pools]:
        return trace, pools_of(trace, takes, {**fleets, name: fleet}, handover)

    return InPlace(name, system, replay)


class InPlace(Recalling):
    """Replays a system in which one pool has the fleet that is asked for.

    What it tells of requests is what their users see, and what it tells of replicas is about those of that pool. So
    whatever is asked of one fleet can be asked of one pool among others that depend on it.
    """

    def __init__(
        self,
        name: str,
        system: Callable[[Trace, Fleet], tuple[Trace, Pools]],
        replay: Replay,
        recall: Recall = anew,
    ) -> None:
        """Stand in for a replay.

        Args:
            name: The pool.
            system: The requests as they are sent, and the pools with this fleet for it, for a trace.
            replay: Runs one pool.
            recall: What earlier plans worked out of this pool among the others.
        """
        self.recall = recall
        self._name = name
        self._system = system
        self._replay = replay

    def __call__(
        self,
        trace: Trace,
        fleet: Fleet,
        *,
        peak_window_s: tuple[float, float] | None = None,
        telemetry_interval_s: float | None = None,
        hopeless: Hopeless | None = None,  # noqa: ARG002 - what users see is known at the end only
        world: World | None = None,
    ) -> RunRecord:
        """Replays ``trace`` with ``fleet`` in the pool, and ``world`` around it."""
        sent, pools = self._system(trace, fleet)
        run = simulator.replay_stages(
            sent,
            pools,
            peak_window_s=peak_window_s,
            telemetry_interval_s=telemetry_interval_s,
            worlds=lambda name, _calls: world if name == self._name else None,
            run=unkept(self._replay),
        )
        return in_its_place(run, self._name)


def in_its_place(run: StagedRun, name: str) -> RunRecord:
    """What users see of all pools, beside what the replicas of one of them did."""
    own = run.pools[name]
    numbers = np.full(len(run.record.arrival_s), -1, dtype=np.int32)
    numbers[own.caller] = own.record.replica
    return replace(
        run.record,
        replica=numbers,
        busy=own.record.busy,
        replica_count=own.record.replica_count,
        telemetry=own.record.telemetry,
        turmoil=_turmoil_of(run.record.turmoil, own.record.turmoil),
    )


def _turmoil_of(users: Turmoil | None, pool: Turmoil | None) -> Turmoil | None:
    """What became of users, and of the replicas of one pool."""
    if users is None or pool is None:
        return users
    return replace(users, state_s=pool.state_s, spells=pool.spells, decisions=pool.decisions)
