"""The moment of a loss: what fails at the fullest moment of the peak, and how a rollout goes through it.

The survivors were judged on their own before; here the fleet is whole until the loss, which takes the requests of the
lost replicas with it. Their clients come back, and wait since their first attempt.
"""

from collections.abc import Callable, Iterator, Sequence
from dataclasses import replace
from math import ceil, inf

import numpy as np

from tokenfleet import workload
from tokenfleet.domain.plan import PlanQuestion
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.run import RunRecord, Status
from tokenfleet.domain.survival import CoursePoint, LossCase, LossKind, Moment, Placement, Recovery, Rollout, Zone
from tokenfleet.domain.trace import Floats, Trace
from tokenfleet.domain.world import Admission, Clients, Happening, World
from tokenfleet.planner.recovery import recovery
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Traffic

CLIENTS = Clients(attempt_count=4, backoff_s=1.0)
"""What clients do where nobody says: three more tries, after one second, two and four, each drawn from its half up."""

_MINUTE_S = 60.0
_MOST_REPEATED = 100_000
"""Requests of a demand that is repeated."""
_COURSE_STEP_S = 2.0
_COURSE_BEFORE_S = 30.0
_COURSE_AFTER_S = 120.0
NO_BOUND = Admission()


@dataclass(frozen=True, slots=True)
class Scene:
    """A whole fleet at its peak, before anything happens to it."""

    replays: Replays
    traffic: Traffic
    replica: ReplicaPhysics
    placement: Placement
    record: RunRecord
    """The run of the whole fleet in quiet times."""
    zones: tuple[Zone, ...] = ()
    clients: Clients = CLIENTS
    admission: Admission = NO_BOUND
    longer: Traffic | None = None
    """The same demand with more of what follows its peak; ``None`` where nothing does."""

    @property
    def fullest_s(self) -> float:
        """When most tokens are in flight, among the arrivals of the peak window."""
        return fullest_s(self.record, self.traffic.window_s)

    def in_flight_tokens(self, at_s: float) -> Floats:
        """Tokens of the requests that each replica holds at a moment."""
        return in_flight_tokens(self.record, at_s, self.placement.replica_count)


def fullest_s(record: RunRecord, window_s: tuple[float, float]) -> float:
    """When most tokens are in flight, among the arrivals of a window; its start where nobody arrives in it."""
    first, last = np.searchsorted(record.arrival_s, list(window_s))
    if first == last:
        return window_s[0]
    moments = record.arrival_s[first:last]
    held = record.input_tokens.astype(np.float64) + record.output_tokens
    done = np.isfinite(record.finish_s)
    order = np.argsort(record.finish_s[done], kind="stable")
    gone = np.concatenate([[0.0], np.cumsum(held[done][order])])
    came = np.concatenate([[0.0], np.cumsum(held)])
    arrived = came[np.searchsorted(record.arrival_s, moments, side="right")]
    finished = gone[np.searchsorted(record.finish_s[done][order], moments, side="right")]
    return float(moments[int(np.argmax(arrived - finished))])


def in_flight_tokens(record: RunRecord, at_s: float, replica_count: int) -> Floats:
    """Tokens of the requests that each of so many replicas holds at a moment."""
    held = (record.arrival_s <= at_s) & (record.finish_s > at_s) & (record.replica >= 0)
    tokens = record.input_tokens[held].astype(np.float64) + record.output_tokens[held]
    found = np.bincount(record.replica[held], weights=tokens, minlength=replica_count)
    return found.astype(np.float64)


def scene_of(
    question: PlanQuestion, replays: Replays, traffic: Traffic, replica: ReplicaPhysics, placement: Placement
) -> Scene:
    """The whole fleet in quiet times, replayed, with what the question says of zones, clients and the door."""
    return Scene(
        replays=replays,
        traffic=traffic,
        replica=replica,
        placement=placement,
        record=replays.run(traffic, replica, placement.replica_count),
        zones=question.redundancy.zones,
        clients=question.clients or CLIENTS,
        admission=question.admission,
    )


def loss_moment(
    replays: Replays,
    traffic: Traffic,
    longer: Traffic | None,
    question: PlanQuestion,
    replica: ReplicaPhysics,
    case: LossCase,
    placement: Placement,
) -> Moment | None:
    """The moment of one loss of a placed fleet.

    Returns:
        ``None`` where nothing would be left, nobody knows how long a start takes, or there is no memory for it.
    """
    count = placement.replica_count
    if (2 if case.kind == "rollout" else 1) * count > replays.most(traffic, replica):
        return None
    scene = replace(scene_of(question, replays, traffic, replica, placement), longer=longer)
    if case.kind == "rollout":
        return rolled_out(scene, question.rollout)
    return drained(scene, case.count) if case.kind == "maintenance" else failed(scene, case.kind, case.count)


def failed(scene: Scene, kind: LossKind, count: int) -> Moment | None:
    """Kills the worst ``count`` of a kind at the fullest moment of the peak.

    Returns:
        ``None`` where nothing would be left to serve.
    """
    at_s = scene.fullest_s
    lost = worst(scene, kind, count, at_s)
    total = scene.placement.replica_count
    if not lost or len(lost) >= total:
        return None
    happening = Happening(time_s=at_s, kind="fail", replicas=lost, reason=f"{kind} lost")
    return _seen(
        scene, World(happenings=(happening,), clients=scene.clients, admission=scene.admission), at_s, lost, total
    )


def drained(scene: Scene, count: int) -> Moment | None:
    """Takes the worst ``count`` nodes out at the fullest moment of the peak, after they have finished what they hold.

    Returns:
        ``None`` where nothing would be left to serve.
    """
    at_s = scene.fullest_s
    gone = worst(scene, "node", count, at_s)
    total = scene.placement.replica_count
    if len(gone) >= total:
        return None
    happening = Happening(time_s=at_s, kind="stop", replicas=gone, reason="node drained")
    return _seen(
        scene, World(happenings=(happening,), clients=scene.clients, admission=scene.admission), at_s, gone, total
    )


def rolled_out(scene: Scene, rollout: Rollout) -> Moment | None:
    """Changes the version of every replica, beginning with the peak window.

    A new replica has an empty cache, takes requests ``ready_after_s`` after its start, and the one it replaces then
    finishes what it has. Those that may be missing stop first.

    Returns:
        ``None`` where nobody knows how long a start takes.
    """
    ready_s = rollout.ready_after_s
    total = scene.placement.replica_count
    if ready_s is None or rollout.max_unavailable_count >= total:
        return None
    start_s = scene.traffic.window_s[0]
    lasts_s = rollout.lasts_s(total) or 0.0
    scene, repeated_count = _until(scene, start_s + lasts_s + scene.traffic.window_length_s)
    world = World(
        happenings=tuple(version_change(total, start_s, rollout)),
        absent=tuple(range(total, 2 * total)),
        clients=scene.clients,
        admission=scene.admission,
    )
    return replace(_seen(scene, world, start_s, (), 2 * total), repeated_count=repeated_count)


def _until(scene: Scene, end_s: float) -> tuple[Scene, int]:
    """The scene with a demand that goes on so long, and how often it had to be repeated for that."""
    if scene.traffic.trace.duration_s >= end_s:
        return scene, 1
    whole = scene.longer or scene.traffic
    times = times_until(whole.trace, end_s)
    if times is None:
        return scene, 1
    repeated = Traffic(workload.repeated(whole.trace, times), scene.traffic.window_s)
    return replace(scene, traffic=repeated, longer=None), times


def times_until(trace: Trace, end_s: float) -> int | None:
    """How often a demand must come, one after the other, to go on so long.

    Nobody knows what comes after a demand but that it is taken to come again.

    Returns:
        ``None`` where that is more than can be replayed.
    """
    times = max(1, ceil(end_s / max(_MINUTE_S, trace.duration_s)))
    return None if times * trace.request_count > _MOST_REPEATED else times


ReadyAt = Callable[[int, float], float]
"""When a replica takes requests that would do so at a moment, in seconds; ``inf``: never."""


def version_change(count: int, start_s: float, rollout: Rollout, ready_at: ReadyAt | None = None) -> list[Happening]:
    """What becomes of ``count`` old replicas, and of as many new ones numbered behind them.

    It goes on when all new replicas that it has started are ready, and waits until then: for ever, where one of them
    never is.

    Args:
        count: Replicas of each version.
        start_s: When the first new ones start.
        rollout: How many at a time; how long a start takes must be known.
        ready_at: What keeps new replicas away; ``None``: nothing does.
    """
    may_serve = ready_at or (lambda _replica, time_s: time_s)
    at_once = rollout.max_surge_count + rollout.max_unavailable_count
    found: list[Happening] = []
    begun_s, first = start_s, 0
    while first < count and begun_s < inf:
        due_s, brought = begun_s + (rollout.ready_after_s or 0.0), range(count, count + first)
        for index in range(first, min(first + at_once, count)):
            new = count + index
            goes_first = index - first < rollout.max_unavailable_count
            stops_s = begun_s if goes_first else _all_ready_s([*brought, new], due_s, may_serve)
            found.append(Happening(time_s=begun_s, kind="start", replicas=(new,), reason="new version"))
            found.append(Happening(time_s=stops_s, kind="stop", replicas=(index,), reason="old version"))
            found.append(Happening(time_s=may_serve(new, due_s), kind="ready", replicas=(new,), reason="new version"))
        first = min(first + at_once, count)
        missing = tuple(each for each in range(count, count + first) if may_serve(each, due_s) > due_s)
        if missing:
            found.append(
                Happening(time_s=due_s, kind="wait", replicas=missing, reason="the rollout goes on when all are ready")
            )
        begun_s = _all_ready_s(range(count, count + first), due_s, may_serve)
    # At one moment those that come are ready before those that go stop.
    known = (each for each in found if each.time_s < inf)
    return sorted(known, key=lambda each: (each.time_s, each.kind == "stop"))


def _all_ready_s(replicas: Sequence[int], time_s: float, ready_at: ReadyAt) -> float:
    """The first moment from then on at which all of them take requests."""
    while (later_s := max(ready_at(each, time_s) for each in replicas)) > time_s:
        if later_s == inf:
            return inf
        time_s = later_s
    return time_s


def worst(scene: Scene, kind: LossKind, count: int, at_s: float) -> tuple[int, ...]:
    """Replicas that go with the worst ``count`` of a kind: most replicas first, then most tokens in flight."""
    tokens = scene.in_flight_tokens(at_s)
    return worst_of(scene.placement, scene.zones, tokens, kind, count)


def worst_of(
    placement: Placement, zones: Sequence[Zone], tokens: Floats, kind: LossKind, count: int
) -> tuple[int, ...]:
    """The same where replicas stand at ``placement`` and hold so many ``tokens`` each."""
    if kind == "replica":
        order = np.argsort(-tokens, kind="stable")
        return tuple(sorted(int(each) for each in order[:count]))
    alone = {zone.name for zone in zones if zone.stands_alone}
    by_zone = in_zones(placement)
    members = [group for name, group in by_zone.items() if name in alone] if kind == "zone" else _on_nodes(placement)
    members.sort(key=lambda group: (-len(group), -float(tokens[group].sum())))
    gone = [replica for group in members[:count] for replica in group]
    if kind == "zone":
        gone += [replica for name, group in by_zone.items() if name not in alone for replica in group]
    return tuple(sorted(set(gone)))


def _on_nodes(placement: Placement) -> list[list[int]]:
    """The replicas of each node."""
    groups = []
    first = 0
    for node in placement.nodes:
        groups.append(list(range(first, first + node.replica_count)))
        first += node.replica_count
    return groups


def in_zones(placement: Placement) -> dict[str, list[int]]:
    """The replicas of each zone."""
    found: dict[str, list[int]] = {}
    for node, group in zip(placement.nodes, _on_nodes(placement), strict=True):
        found.setdefault(node.zone, []).extend(group)
    return found


def _seen(scene: Scene, world: World, at_s: float, lost: tuple[int, ...], count: int) -> Moment:
    length_s = scene.traffic.window_length_s
    after = Traffic(scene.traffic.trace, (at_s, at_s + length_s))
    record = scene.replays.run(after, scene.replica, count, world=world, telemetry_interval_s=_COURSE_STEP_S)
    verdict = scene.replays.judged(after, record)
    again = np.zeros(0) if record.turmoil is None else record.ttft_s[record.turmoil.attempt_count > 1]
    waits = again[np.isfinite(again)]
    return Moment(
        time_s=at_s,
        replicas=lost,
        lost_request_count=0 if record.turmoil is None else record.turmoil.lost_count,
        unfinished_count=int((record.status != Status.FINISHED).sum()),
        longest_wait_s=float(waits.max()) if len(waits) else None,
        kept=verdict.kept,
        slo_after=verdict.peak,
        slo_overall=verdict.overall,
        recovery=_recovered(scene, record, world, at_s, scene.placement.replica_count - len(lost)),
        course=tuple(_course(record, at_s, count - len(world.absent))),
        demand_end_s=scene.traffic.trace.duration_s,
    )


def _recovered(scene: Scene, record: RunRecord, world: World, at_s: float, left_count: int) -> Recovery:
    """When it is over: at once, or when nothing is worse than it is by chance on the ``left_count`` that stay."""
    slo, length_s = scene.replays.slo, scene.traffic.window_length_s
    found = recovery(record, slo, at_s, window_s=length_s)
    if found.after_s != 0.0:
        usual = _usual(scene, scene.traffic, left_count)
        found = recovery(record, slo, at_s, window_s=length_s, usual=usual)
    if found.lasts or scene.longer is None:
        return found
    longer = scene.replays.run(
        scene.longer, scene.replica, len(world.absent) + scene.placement.replica_count, world=world
    )
    usual = _usual(scene, scene.longer, left_count)
    return recovery(longer, slo, at_s, window_s=length_s, usual=usual)


def _usual(scene: Scene, traffic: Traffic, count: int) -> RunRecord | None:
    """The traffic in quiet times; ``None`` where so few do not keep the promise of themselves."""
    record = scene.replays.run(traffic, scene.replica, count)
    return record if scene.replays.judged(traffic, record).kept else None


def _course(record: RunRecord, at_s: float, ready_count: int) -> Iterator[CoursePoint]:
    telemetry, turmoil = record.telemetry, record.turmoil
    if telemetry is None or turmoil is None:
        return
    moves = {"ready": 1, "stop": -1, "drain": -1, "fail": -1}
    changes = [(each.time_s, moves.get(each.kind, 0) * len(each.replicas)) for each in turmoil.decisions]
    around = (telemetry.time_s >= at_s - _COURSE_BEFORE_S) & (telemetry.time_s <= at_s + _COURSE_AFTER_S)
    for index in np.flatnonzero(around):
        time_s = float(telemetry.time_s[index])
        first, last = np.searchsorted(record.arrival_s, [time_s - _COURSE_STEP_S, time_s])
        waits = record.ttft_s[first:last]
        waits = waits[np.isfinite(waits)]
        yield CoursePoint(
            since_s=time_s - at_s,
            ready_replica_count=ready_count + sum(change for moment_s, change in changes if moment_s <= time_s),
            waiting_count=int(telemetry.waiting[index].sum()),
            running_count=int(telemetry.running[index].sum()),
            slowest_ttft_s=float(waits.max()) if len(waits) else None,
        )
