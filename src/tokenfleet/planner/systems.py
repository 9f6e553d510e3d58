"""The pools of a plan as one system, replayed together: what users see of all of them."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from tokenfleet import simulator
from tokenfleet.domain.fleet import Fleet, ReplicaGroup, Router
from tokenfleet.domain.plan import PlannedPool, PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import RunRecord, Turmoil
from tokenfleet.domain.stages import Call, Handover, Pools, StagedRun
from tokenfleet.domain.trace import Bools, Trace, rows_of
from tokenfleet.domain.ways import Takes
from tokenfleet.domain.world import World
from tokenfleet.planner.early import Hopeless
from tokenfleet.planner.placement import placed
from tokenfleet.planner.redundancy import asked
from tokenfleet.planner.replays import Replays, with_step_factor
from tokenfleet.planner.spread import Replay
from tokenfleet.planner.traffic import Traffic
from tokenfleet.planner.verdict import Verdict


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


@dataclass(frozen=True, slots=True)
class SizedPool:
    """One pool that was sized."""

    name: str
    takes: Takes | None
    """Which requests come to it; ``None``: all."""
    sized: Sized
    router: Router


@dataclass(frozen=True, slots=True)
class System:
    """Pools that were sized, and how requests go through them."""

    parts: tuple[SizedPool, ...]
    handover: Handover | None

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

    def with_counts(self, counts: Sequence[int]) -> "System":
        """The same pools with so many carrying replicas each."""
        sized = (replace(part.sized, carrying_count=count) for part, count in zip(self.parts, counts, strict=True))
        parts = (replace(part, sized=each) for part, each in zip(self.parts, sized, strict=True))
        return replace(self, parts=tuple(parts))

    def judged(self, replays: Replays, traffic: Traffic, *, spare: bool = False) -> Verdict:
        """The promise with the spare replicas of every pool gone, or there."""
        # Gaps are counted class by class along with telemetry: one sample of it is enough.
        interval_s = max(1.0, traffic.trace.duration_s) if replays.slo.gaps_apart else None
        run = self.replayed(replays, traffic, spare=spare, telemetry_interval_s=interval_s)
        return replays.judged(traffic, run.record)

    def replayed(
        self,
        replays: Replays,
        traffic: Traffic,
        *,
        spare: bool,
        power: int = 0,
        telemetry_interval_s: float | None = None,
        worlds: Mapping[str, World] | None = None,
    ) -> StagedRun:
        """Replays the traffic through all pools, in quiet times or each in a world of its own."""
        around = worlds or {}
        replays.count += len(self.parts)
        takes = {part.name: part.takes for part in self.parts}
        return simulator.replay_stages(
            traffic.trace,
            pools_of(traffic.trace, takes, self.fleets(spare=spare, power=power), self.handover),
            peak_window_s=traffic.window_s,
            telemetry_interval_s=telemetry_interval_s,
            worlds=lambda name, _calls: around.get(name, replays.door),
            run=replays.replay,
        )


def _fleet(part: SizedPool, *, spare: bool, power: int) -> Fleet:
    sized, replica = part.sized, part.sized.replica
    if power:
        replica = with_step_factor(replica, replica.band.step_time_factor**power)
    count = sized.replica_count if spare else sized.carrying_count
    return Fleet(groups=(ReplicaGroup(replica=replica, replica_count=count),), router=part.router)


def system_of(pools: Sequence[PlannedPool], handover: Handover | None) -> System:
    """The pools of a plan."""
    return System(tuple(_part(pool) for pool in pools), handover)


def _part(pool: PlannedPool) -> SizedPool:
    fleet, (sized,) = pool.plan.fleet, pool.plan.fleets
    if fleet is None:
        raise ValueError(f"the pool {pool.name} has no fleet")
    return SizedPool(pool.name, pool.takes, sized, fleet.router)


def crowded(system: System, question: PlanQuestion) -> str:
    """Why zones or quota have no room for all pools at once, each of which has room alone; empty where they have."""
    quota = question.redundancy.gpu_quota_count
    total = sum(part.sized.gpu_count for part in system.parts)
    if quota is not None and total > quota:
        return f"they take {total} GPUs, and the quota is {quota}"
    for zone in question.redundancy.zones:
        gpus = sum(_gpus_in(zone.name, part.sized, question) for part in system.parts)
        if zone.gpu_limit_count is not None and gpus > zone.gpu_limit_count:
            return f"they take {gpus} GPUs of zone {zone.name}, which has {zone.gpu_limit_count}"
    return ""


def _gpus_in(zone: str, sized: Sized, question: PlanQuestion) -> int:
    placement = placed(sized.replica_count, sized.replica, asked(question))
    count = 0 if placement is None else placement.by_zone.get(zone, 0)
    return count * sized.replica.deployment.layout.gpu_count


@dataclass(frozen=True, slots=True)
class Proof:
    """A system on the whole traffic, judged with the range of its error band."""

    run: StagedRun
    verdict: Verdict


def proof(system: System, replays: Replays, traffic: Traffic, *, spare: bool, telemetry_interval_s: float) -> Proof:
    """Replays a system as predicted, and with the steps of all pools at either end of their error bands."""
    apart_s = telemetry_interval_s if replays.slo.gaps_apart else None
    run = system.replayed(replays, traffic, spare=spare, telemetry_interval_s=telemetry_interval_s)
    low, high = (
        system.replayed(replays, traffic, spare=spare, power=power, telemetry_interval_s=apart_s).record
        for power in (-1, 1)
    )
    factor = max(part.sized.replica.band.first_token_factor for part in system.parts)
    verdict = replays.judged(traffic, run.record, low=low, high=high, first_token_factor=factor)
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

    def system(trace: Trace, fleet: Fleet) -> Pools:
        return pools_of(trace, takes, {**fleets, name: fleet}, handover)

    return InPlace(name, system, replay)


class InPlace:
    """Replays a system in which one pool has the fleet that is asked for.

    What it tells of requests is what their users see, and what it tells of replicas is about those of that pool. So
    whatever is asked of one fleet can be asked of one pool among others that depend on it.
    """

    def __init__(self, name: str, system: Callable[[Trace, Fleet], Pools], replay: Replay) -> None:
        """Stand in for a replay.

        Args:
            name: The pool.
            system: The pools with this fleet for it, for a trace.
            replay: Runs one pool.
        """
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
        run = simulator.replay_stages(
            trace,
            self._system(trace, fleet),
            peak_window_s=peak_window_s,
            telemetry_interval_s=telemetry_interval_s,
            worlds=lambda name, _calls: world if name == self._name else None,
            run=self._replay,
        )
        own = run.pools[self._name]
        numbers = np.full(trace.request_count, -1, dtype=np.int32)
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
