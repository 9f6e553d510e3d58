"""Small worlds around small fleets, for tests of the simulator."""

from dataclasses import dataclass, field, replace

import numpy as np

from tokenfleet.domain.world import (
    NO_CAP,
    Admission,
    BatchLane,
    Clients,
    ClosedLoop,
    Door,
    FleetView,
    Happening,
    Leaving,
    ReplicaState,
    World,
)

KINDS = ("start", "ready", "drain", "stop", "fail", "back", "slow", "wait")


@dataclass
class Recorder:
    """A controller that remembers what it saw, brings back what is missing, and now and then does harm."""

    views: list[FleetView] = field(default_factory=list)
    closes_doors: bool = True

    def __call__(self, view: FleetView) -> list[Happening]:
        self.views.append(view)
        missing = [n for n, state in enumerate(view.state) if state in {ReplicaState.ABSENT, ReplicaState.FAILED}]
        ready = [n for n, state in enumerate(view.state) if state == ReplicaState.READY]
        answer = []
        if missing and (view.refused_count or view.waiting.sum() > 1 or not ready):
            answer.append(Happening(time_s=view.time_s, kind="start", replicas=(missing[0],), reason="busy"))
            answer.append(Happening(time_s=view.time_s + 0.025, kind="ready", replicas=(missing[0],)))
        if len(ready) > 1 and (view.waiting.sum() == 0 or len(self.views) % 7 == 3):
            answer.append(Happening(time_s=view.time_s, kind="stop", replicas=(ready[-1],), reason="calm"))
        if self.closes_doors and view.refused_count and len(self.views) % 3 == 2:
            door = Door(
                batch_is_open=False,
                output_cap_tokens=6,
                quota_tokens_per_s=100,
                quota_burst_tokens=90,
                session_limit_count=2,
                smaller_input_tokens=30,
            )
            answer.append(Happening(time_s=view.time_s, kind="door", replicas=(), door=door, reason="busy"))
        if view.ttft_p90_s is not None and len(self.views) % 5 == 4:
            late = view.time_s + view.ttft_p90_s
            answer.append(Happening(time_s=late, kind="fail", replicas=tuple(ready[:1])))
        return answer

    def shown(self) -> list[tuple[object, ...]]:
        """The views in values that compare."""
        return [
            (
                view.time_s,
                view.state.tolist(),
                view.running.tolist(),
                view.waiting.tolist(),
                view.kv_used_fraction.tolist(),
                view.arrived_count,
                view.refused_count,
                view.ttft_p90_s,
                view.free_kv_tokens.tolist(),
                None if view.active_tokens is None else view.active_tokens.tolist(),
                None if view.oldest_wait_s is None else {p: w.tolist() for p, w in view.oldest_wait_s.items()},
                view.first_tokens.tolist(),
                view.first_token_s.tolist(),
            )
            for view in self.views
        ]


def random_happenings(draw: np.random.Generator, replica_count: int, span_s: float) -> tuple[Happening, ...]:
    """Anything to anybody, often at the round times at which steps end."""
    count = int(draw.choice([0, 1, 3, 8, 20]))
    times_s = np.sort(draw.uniform(0.0, span_s, count))
    if draw.random() < 0.5:
        times_s = np.floor(times_s * 100.0) / 100.0
    happenings = tuple(
        Happening(
            time_s=float(time_s),
            kind=str(draw.choice(KINDS, p=[0.05, 0.25, 0.1, 0.1, 0.2, 0.1, 0.15, 0.05])),
            replicas=tuple(np.flatnonzero(draw.random(replica_count) < 0.5).tolist()),
            step_time_factor=float(draw.choice([0.5, 1.0, 1.7, 3.0])),
            reason=f"number {number}",
        )
        for number, time_s in enumerate(times_s)
    )
    if draw.random() < 0.7:
        return happenings
    # Some of them close or open the door instead.
    return tuple(
        Happening(time_s=each.time_s, kind="door", replicas=(), door=random_door(draw), reason=each.reason)
        if draw.random() < 0.5
        else each
        for each in happenings
    )


def random_door(draw: np.random.Generator) -> Door:
    """Any limit, often none, and tight as a rule."""

    def limit(*choices: int) -> int:
        return NO_CAP if draw.random() < 0.6 else int(draw.choice(choices))

    quota = limit(0, 20, 300, 5000)
    return Door(
        batch_is_open=bool(draw.random() < 0.6),
        quota_tokens_per_s=quota,
        quota_burst_tokens=NO_CAP if quota == NO_CAP else int(draw.choice([0, 30, 200])),
        session_limit_count=limit(0, 1, 3, 8),
        context_cap_tokens=limit(10, 30, 60),
        output_cap_tokens=limit(0, 2, 8),
        smaller_input_tokens=int(draw.choice([0, 0, 15, 40])),
        smaller_output_tokens=limit(1, 5),
        wait_cap_s=None if draw.random() < 0.6 else float(draw.choice([0.004, 0.02, 0.05])),
    )


def with_lane(draw: np.random.Generator, world: World, request_count: int) -> World:
    """The world with a lane for batch, in a window that opens after a while now and then."""
    lane = BatchLane(
        opens_s=float(draw.choice([0.0, 0.2, 0.7])),
        open_for_s=float(draw.choice([86_400.0, 80_000.0])),
        slot_fraction=float(draw.choice([0.2, 0.5, 1.0])),
        kept_count=int(draw.integers(0, 3)),
        patience_s=float(draw.choice([0.0, 0.05, 0.3, 600.0])),
        wait_s=float(draw.choice([0.0, 0.0, 0.02, 0.1])),
    )
    return replace(world, lane=lane, batch=draw.random(request_count) < draw.choice([0.3, 0.6, 1.0]))


def random_loop(draw: np.random.Generator, request_count: int) -> ClosedLoop:
    """Sessions, forks, and a line of requests for whoever is free."""
    after = np.full(request_count, -1, dtype=np.int32)
    for row in range(1, request_count):
        chance = draw.random()
        if chance < 0.4:
            after[row] = draw.integers(0, row)
        elif chance < 0.7:
            after[row] = -2
    delay_s = draw.exponential(0.03, request_count) * (draw.random(request_count) < 0.7)
    if draw.random() < 0.5:
        delay_s = np.floor(delay_s * 100.0) / 100.0
    return ClosedLoop(after=after, delay_s=delay_s)


def random_leaving(draw: np.random.Generator, request_count: int) -> Leaving:
    """Users who leave after a time, with a token, with whichever is first, or not at all."""
    after_s = draw.exponential(float(draw.choice([0.02, 0.2])), request_count) + 1e-6
    if draw.random() < 0.5:
        after_s = np.ceil(after_s * 100.0) / 100.0
    after_s[draw.random(request_count) < 0.4] = np.inf
    after_tokens = draw.integers(0, int(draw.choice([3, 20])), request_count).astype(np.int32)
    chance = draw.random()
    return Leaving(
        after_tokens=None if chance < 0.3 else after_tokens,
        after_s=None if chance > 0.7 else after_s,
    )


def random_timeout_s(draw: np.random.Generator) -> float | None:
    """Short as a rule, often the length of some steps."""
    return None if draw.random() < 0.6 else float(draw.choice([0.01, 0.03, 0.0777, 0.2, 1.0]))


def random_world(draw: np.random.Generator, replica_count: int, request_count: int, span_s: float) -> World:
    """Trouble of every kind, and now and then none of some."""
    world = World(
        happenings=random_happenings(draw, replica_count, span_s),
        absent=tuple(np.flatnonzero(draw.random(replica_count) < draw.choice([0.0, 0.0, 0.3])).tolist()),
        clients=Clients(
            attempt_count=int(draw.choice([1, 2, 5, 12])),
            backoff_s=float(draw.choice([0.0, 0.001, 0.02, 0.3])),
            longest_backoff_s=float(draw.choice([0.0, 0.05, 2.0])),
            first_token_timeout_s=random_timeout_s(draw),
            timeout_s=random_timeout_s(draw),
            read_tokens_per_s=None if draw.random() < 0.8 else float(draw.choice([20.0, 77.7, 100.0, 1000.0])),
        ),
        admission=Admission(
            queue_limit_count=None if draw.random() < 0.4 else int(draw.integers(1, 5)),
            retry_after_s=float(draw.choice([0.0, 0.0, 0.04])),
            session_idle_s=float(draw.choice([0.0, 0.05, 0.2, 300.0])),
        ),
        door=random_door(draw) if draw.random() < 0.2 else Door(),
        batch=draw.random(request_count) < 0.4 if draw.random() < 0.5 else None,
        closed_loop=random_loop(draw, request_count) if draw.random() < 0.5 else None,
        controller=Recorder() if draw.random() < 0.4 else None,
        leaving=random_leaving(draw, request_count) if draw.random() < 0.3 else None,
        tick_s=float(draw.choice([0.01, 0.037, 0.2])),
        caps_waits=True,
        looks_inside=True,
    )
    deadline_s = None if draw.random() < 0.4 else float(draw.choice([0.004, 0.02, 0.05, 0.2]))
    return replace(world, admission=replace(world.admission, deadline_s=deadline_s))
