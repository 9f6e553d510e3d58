"""Writes the world around a fleet into the buffer, behind everything that a quiet replay needs."""

from dataclasses import replace

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Ints, Trace, rows_of
from tokenfleet.domain.world import (
    BY_CLOCK,
    NEXT_IN_LINE,
    Admission,
    BatchLane,
    Clients,
    ClosedLoop,
    Door,
    ReplicaState,
    World,
)
from tokenfleet.simulator import layout as at
from tokenfleet.simulator.building import affinity_keys, build, to_ps
from tokenfleet.simulator.equipping import write_group
from tokenfleet.simulator.own_prompts import finds_itself, with_own_prompts
from tokenfleet.simulator.placing import (
    Buffer,
    Places,
    Planner,
    Section,
    duration_words,
    node_end,
    place,
    ring_size,
)

MICRO = 1_000_000
"""Buckets hold millionths of a token, clocks of buckets run in microseconds."""
PS_PER_US = 1_000_000


@dataclass(frozen=True, slots=True)
class Surroundings:
    """Where the sections of the world lie in a buffer."""

    visits: Section
    late: Section
    states: Section
    firsts: Section
    """Empty without a controller."""
    door: Section
    """Empty where everybody is let in."""
    sessions: Section
    """Empty there, too."""
    patience: Section
    """Empty where nobody ever gives up."""
    alarms: Section
    slowed: dict[tuple[int, float], tuple[Section, Section]]
    """Row and token table of a group whose steps are slower, by number of the group and factor."""
    order: npt.NDArray[np.int64]
    """Place in the trace of each request row."""
    rows: Trace
    """The requests in that order, as the kernel knows them."""
    deadline_ps: int
    """How long anybody may wait to be admitted, 0 for ever; the door may say less."""
    words: int


def surround(
    trace: Trace, fleet: Fleet, peak_window_s: tuple[float, float] | None, world: World, *, detailed: bool
) -> tuple[Buffer, Places, Surroundings]:
    """The buffer at time 0, with a world around the fleet; see :func:`tokenfleet.simulator.building.build`.

    Requests that arrive by the clock come first.
    """
    loop = world.closed_loop
    order = np.arange(trace.request_count) if loop is None else np.argsort(loop.after != BY_CLOCK, kind="stable")
    rows = trace if loop is None else rows_of(trace, order)
    asked = rows
    if finds_itself(fleet, world):
        rows = with_own_prompts(rows)
    places = place(rows, fleet, detailed=detailed)
    around = place_surroundings(places.words, fleet, world, trace, order, rows)
    memory, _ = build(rows, fleet, peak_window_s, detailed=detailed, more_words=around.words - places.words)
    write_world(memory, around, world)
    write_states(memory, places, around, world)
    if fleet.router == "prefix_affinity" and rows is not asked:
        memory[places.requests.start + at.PLACE : places.requests.stop : at.REQUEST_WORDS] = affinity_keys(asked)
    write_visits(memory, places, around)
    if around.door.words:
        write_who(memory, around, trace, world)
        write_door(memory, around, world.door, 0)
        memory[around.door.start + at.SESSION_IDLE] = to_ps(world.admission.session_idle_s)
    if world.lane is not None:
        write_lane(memory, places, around.door.start, fleet, world.lane)
    for (index, factor), (row, table) in around.slowed.items():
        group = slower(fleet.groups[index], factor)
        write_group(memory, row.start, table, group, ring_size(trace), node_end(fleet, group))
        memory[row.start + at.BY_PRIORITY] = memory[places.groups.start + index * at.GROUP_WORDS + at.BY_PRIORITY]
    if world.calls is not None:
        write_calls(memory, places, around, world.calls)
    if around.patience.words:
        write_patience(memory, around, trace, world)
    if loop is not None:
        write_loop(memory, places, around, loop)
    return memory, places, around


def slower(group: ReplicaGroup, factor: float) -> ReplicaGroup:
    """The group with longer steps; what its front end does takes as long as before."""
    from tokenfleet import performance

    step_time = group.replica.step_time
    scaled = replace(performance.scaled(step_time, factor), request_ps=step_time.request_ps)
    return replace(group, replica=replace(group.replica, step_time=scaled))


def place_surroundings(
    used: int, fleet: Fleet, world: World, trace: Trace, order: npt.NDArray[np.int64], rows: Trace
) -> Surroundings:
    """Lay the sections out behind the ``used`` words."""
    planner = Planner(used)
    factors = {each.step_time_factor for each in world.happenings if each.kind == "slow"}
    slowed = {
        (index, factor): (planner.take(at.GROUP_WORDS), planner.take(duration_words(group)))
        for index, group in enumerate(fleet.groups)
        for factor in sorted(factors - {1.0})
    }
    most = max(group.replica.deployment.engine.max_sequence_count for group in fleet.groups)
    return Surroundings(
        firsts=planner.take(0 if world.controller is None else at.MOST_FIRSTS + most),
        visits=planner.take(len(order) * at.VISIT_WORDS),
        late=planner.take(2 * len(order)),
        door=planner.take(at.DOOR_WORDS + at.BUCKET_WORDS * len(trace.tenants) if has_door(world) else 0),
        patience=planner.take(len(order) * at.PATIENCE_WORDS if gives_up(world) else 0),
        alarms=planner.take(len(order) if gives_up(world) else 0),
        sessions=planner.take(at.SESSION_WORDS * session_count(trace) if has_door(world) else 0),
        states=planner.take(sum(group.replica_count for group in fleet.groups)),
        slowed=slowed,
        order=order,
        rows=rows,
        deadline_ps=0 if world.admission.deadline_s is None else to_ps(world.admission.deadline_s),
        words=planner.used,
    )


def write_world(memory: Buffer, around: Surroundings, world: World) -> None:
    """What holds for the whole replay."""
    clients: Clients = world.clients
    admission: Admission = world.admission
    limit = admission.queue_limit_count
    for field, value in (
        (at.VISITS_AT, around.visits.start),
        (at.STATES_AT, around.states.start),
        (at.LATE_AT, around.late.start),
        (at.FIRSTS_AT, around.firsts.start if around.firsts.words else at.NONE),
        (at.DOOR_AT, around.door.start if around.door.words else at.NONE),
        (at.QUEUE_LIMIT, at.NEVER_PS if limit is None else limit),
        (at.RETRY_AFTER, to_ps(admission.retry_after_s)),
        (at.MOST_ATTEMPTS, clients.attempt_count),
        (at.BACKOFF, to_ps(clients.backoff_s)),
        (at.LONGEST_BACKOFF, to_ps(clients.longest_backoff_s)),
        (at.PATIENCE_AT, around.patience.start if around.patience.words else at.NONE),
        (at.ALARMS_AT, around.alarms.start),
        (at.FIRST_PATIENCE, 0 if clients.first_token_timeout_s is None else to_ps(clients.first_token_timeout_s)),
        (at.DEADLINE, around.deadline_ps),
        (at.READ_PS, token_read_ps(clients.read_tokens_per_s)),
        (at.WHOLE_PATIENCE, 0 if clients.timeout_s is None else to_ps(clients.timeout_s)),
    ):
        memory[field] = value


def token_read_ps(rate: float | None) -> int:
    """How long a client that reads so many tokens a second reads at one; 0 where it takes them as they come."""
    return 0 if rate is None else min(round(1e12 / rate), at.NEVER_PS // 2)


def has_door(world: World) -> bool:
    """Whether anybody may ever be turned away at the door."""
    changed = any(happening.kind == "door" for happening in world.happenings)
    return world.door != Door() or changed or world.controller is not None or world.lane is not None


def gives_up(world: World) -> bool:
    """Whether any client or the door ever does, or a client reads on at the end: then each request has an alarm."""
    clients = world.clients
    times_out = clients.first_token_timeout_s is not None or clients.timeout_s is not None
    waits = world.leaving is not None or world.admission.deadline_s is not None
    doors = (world.door, *(happening.door for happening in world.happenings if happening.door is not None))
    capped = world.caps_waits or any(door.wait_cap_s is not None for door in doors)
    return times_out or waits or capped or clients.read_tokens_per_s is not None


def write_patience(memory: Buffer, around: Surroundings, trace: Trace, world: World) -> None:
    """When the user of each request leaves; one who stays to the last token does not."""
    if world.leaving is None:
        return
    rows = memory[around.patience.start : around.patience.stop].reshape(-1, at.PATIENCE_WORDS)
    if world.leaving.after_tokens is not None:
        tokens = np.asarray(world.leaving.after_tokens)
        rows[:, at.STAYS_TOKENS] = np.where(tokens < trace.output_tokens, tokens, 0)[around.order]
    if world.leaving.after_s is not None:
        after_s = np.asarray(world.leaving.after_s)[around.order]
        leaves = np.flatnonzero(np.isfinite(after_s))
        rows[leaves, at.STAYS] = np.rint(after_s[leaves] * 1e12)


def write_door(memory: Buffer, around: Surroundings, door: Door, time_ps: int) -> None:
    """What the door goes by from now on. Where the quota is another one, every tenant starts with a full bucket."""
    start = around.door.start
    if (memory[start + at.QUOTA_RATE], memory[start + at.QUOTA_BURST]) != (
        door.quota_tokens_per_s,
        door.quota_burst_tokens,
    ):
        buckets = memory[start + at.DOOR_WORDS : around.door.stop].reshape(-1, at.BUCKET_WORDS)
        buckets[:, at.BUCKET_LEVEL] = door.quota_burst_tokens * MICRO
        buckets[:, at.BUCKET_TIME] = time_ps // PS_PER_US
    for field, value in (
        (at.BATCH_IS_OPEN, int(door.batch_is_open)),
        (at.QUOTA_RATE, door.quota_tokens_per_s),
        (at.QUOTA_BURST, door.quota_burst_tokens),
        (at.SESSION_LIMIT, door.session_limit_count),
        (at.CONTEXT_CAP, door.context_cap_tokens),
        (at.OUTPUT_CAP, door.output_cap_tokens),
        (at.SMALLER_INPUT, door.smaller_input_tokens),
        (at.SMALLER_OUTPUT, door.smaller_output_tokens),
    ):
        memory[start + field] = value
    if around.patience.words:
        waits_ps = [around.deadline_ps, 0 if door.wait_cap_s is None else to_ps(door.wait_cap_s)]
        memory[at.DEADLINE] = min(filter(None, waits_ps), default=0)
    elif door.wait_cap_s is not None:
        raise ValueError("a controller caps waits in a world that says it does not: caps_waits")


def in_lanes(trace: Trace, fleet: Fleet, world: World) -> tuple[Trace, Fleet]:
    """Trace and fleet with two levels of priority, where batch has a lane: interactive and batch."""
    if world.lane is None or world.batch is None:
        return trace, fleet

    def by_level(group: ReplicaGroup) -> ReplicaGroup:
        deployment = group.replica.deployment
        engine = replace(deployment.engine, scheduling="priority")
        return replace(group, replica=replace(group.replica, deployment=replace(deployment, engine=engine)))

    level = np.asarray(world.batch).astype(np.int32)
    return replace(trace, priority=level), replace(fleet, groups=tuple(by_level(group) for group in fleet.groups))


def write_lane(memory: Buffer, places: Places, door: int, fleet: Fleet, lane: BatchLane) -> None:
    """When batch is sent, where there is room for it, and how replicas tell it from the others."""
    for field, value in (
        (at.HAS_LANE, 1),
        (at.PATIENCE, round(lane.patience_s * MICRO)),
        (at.LANE_WAIT, to_ps(lane.wait_s)),
        (at.LANE_OPENS, round(lane.opens_s * MICRO)),
        (at.LANE_OPEN_FOR, round(lane.open_for_s * MICRO)),
        (at.KEPT, lane.kept_count),
    ):
        memory[door + field] = value
    for group in range(len(fleet.groups)):
        memory[places.groups.start + group * at.GROUP_WORDS + at.BY_PRIORITY] = at.BY_LANE
    slots = [batch_slots(group, lane) for group in fleet.groups for _ in range(group.replica_count)]
    memory[places.scrapes.start + at.BATCH_SLOTS : places.scrapes.stop : at.SCRAPE_WORDS] = slots


def batch_slots(group: ReplicaGroup, lane: BatchLane) -> int:
    """Requests in flight up to which batch fills a replica, one at least."""
    return max(1, int(lane.slot_fraction * group.replica.deployment.engine.max_sequence_count))


def write_who(memory: Buffer, around: Surroundings, trace: Trace, world: World) -> None:
    """What the door sees of a request beside its lengths."""
    count = trace.request_count
    batch = np.zeros(count, dtype=np.int64) if world.batch is None else np.asarray(world.batch).astype(np.int64)
    tenant = np.zeros(count, dtype=np.int64) if trace.tenant is None else trace.tenant.astype(np.int64) + 1
    visits = memory[around.visits.start : around.visits.stop].reshape(-1, at.VISIT_WORDS)
    visits[:, at.WHO] = (batch | tenant << 1)[around.order]
    if trace.session is not None:
        session = trace.session.astype(np.int64)
        rows = np.where(session < 0, at.NONE, around.sessions.start + at.SESSION_WORDS * session)
        visits[:, at.SESSION] = rows[around.order]


def session_count(trace: Trace) -> int:
    """Sessions of a trace, which are numbered from 0."""
    return 0 if trace.session is None else int(trace.session.max(initial=-1)) + 1


def write_states(memory: Buffer, places: Places, around: Surroundings, world: World) -> None:
    """Which replicas are ready at second 0."""
    states = memory[around.states.start : around.states.stop]
    states[:] = int(ReplicaState.READY)
    states[list(world.absent)] = int(ReplicaState.ABSENT)
    count_ready(memory, places, states)


def count_ready(memory: Buffer, places: Places, states: Buffer) -> None:
    """Note how many replicas of each pool are ready."""
    for pool in range(places.pools.start, places.pools.stop, at.POOL_WORDS):
        mine = states[memory[pool + at.FIRST_REPLICA] : memory[pool + at.LAST_REPLICA] + 1]
        memory[pool + at.READY_COUNT] = np.count_nonzero(mine == int(ReplicaState.READY))


def write_visits(memory: Buffer, places: Places, around: Surroundings) -> None:
    """What a client must know to send a request again."""
    rows = memory[places.requests.start : places.requests.stop].reshape(-1, at.REQUEST_WORDS)
    visits = memory[around.visits.start : around.visits.stop].reshape(-1, at.VISIT_WORDS)
    visits[:, at.FIRST_ARRIVAL] = -1
    visits[:, at.KEY] = rows[:, at.PLACE]
    visits[:, at.DEEPEST] = rows[:, at.PREFIX]
    visits[:, at.ROW] = around.order
    visits[:, at.NO_TOKEN] = rows[:, at.FIRST_TOKEN]
    visits[:, at.CALLED] = places.pools.start
    visits[:, at.ENDS_LEFT] = 1
    visits[:, at.LEFT] = -1


def write_calls(memory: Buffer, places: Places, around: Surroundings, calls: Ints) -> None:
    """Which pool each request calls."""
    visits = memory[around.visits.start : around.visits.stop].reshape(-1, at.VISIT_WORDS)
    visits[:, at.CALLED] = places.pools.start + at.POOL_WORDS * np.asarray(calls).astype(np.int64)[around.order]


def write_loop(memory: Buffer, places: Places, around: Surroundings, loop: ClosedLoop) -> None:
    """Who sends what when which request has ended."""
    visits = memory[around.visits.start : around.visits.stop].reshape(-1, at.VISIT_WORDS)
    count = len(around.order)
    place_of = np.empty(count, dtype=np.int64)
    place_of[around.order] = np.arange(count)
    after = np.asarray(loop.after)[around.order]
    rows = places.requests.start + at.REQUEST_WORDS * np.arange(count)
    memory[at.CLOCKED_COUNT] = np.count_nonzero(after == BY_CLOCK)
    bonds = ((at.ON_SUCCESS, loop.only_after_success), (at.MARK, loop.marks), (at.UNREAD, loop.unread))
    for bond, rows_bound in bonds:
        if rows_bound is not None:
            memory[at.HAS_BONDS] = 1
            visits[:, at.BOND] += bond * np.asarray(rows_bound)[around.order]
    followers = np.flatnonzero(after >= 0)
    waited = np.ones(count, dtype=np.int64) if loop.end_count is None else np.asarray(loop.end_count).astype(np.int64)
    ends: Buffer = waited[around.order][followers]
    visits[followers, at.ENDS_LEFT] = ends
    followers = np.repeat(followers, ends)
    before = np.arange(len(followers)) - np.repeat(np.cumsum(ends) - ends, ends)
    causes = place_of[after[followers] - before]
    by_cause = np.argsort(causes, kind="stable")
    followers, causes = followers[by_cause], causes[by_cause]
    another = np.diff(causes, prepend=-1) != 0
    visits[causes[another], at.FIRST_FOLLOWER] = rows[followers[another]]
    visits[followers[:-1][~another[1:]], at.NEXT_FOLLOWER] = rows[followers[1:][~another[1:]]]
    line = np.flatnonzero(after == NEXT_IN_LINE)
    if len(line):
        memory[at.LINE] = rows[line[0]]
        visits[line[:-1], at.NEXT_FOLLOWER] = rows[line[1:]]
    delay_s = np.where(after == BY_CLOCK, 0.0, np.asarray(loop.delay_s)[around.order])
    visits[:, at.DELAY] = np.maximum(0 if loop.at_once else 1, np.rint(delay_s * 1e12))
