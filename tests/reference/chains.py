"""Small systems of pools, with doors in front of them, for tests of the simulator."""

from dataclasses import dataclass, field, replace

import numpy as np

from reference.fleets import random_fleet
from reference.worlds import random_door
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.stages import Call, Gate, Pools, Transfer, Wait
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import Clients, Door, FleetView, Happening


def random_pool(draw: np.random.Generator) -> Fleet:
    name = str(draw.choice(["test", "test", "sglang-0.5", "trtllm-1.2"]))
    drawn = random_fleet(draw, name=name, prefix_caching=False)
    router = "least_in_flight" if drawn.router == "prefix_affinity" else drawn.router
    return Fleet(groups=drawn.groups, router=router)


def random_stages(draw: np.random.Generator, rows) -> Pools:
    """A side branch with parallel calls and a wait, then prefill and decode apart; each request takes some of it."""
    count = rows.request_count
    some, many = draw.random(count) < 0.5, draw.random(count) < 0.9
    going = many & (rows.output_tokens > 1)
    unit_s = float(draw.choice([0.01, 0.001234567]))
    durations = draw.integers(0, 5, (2, count)) * unit_s
    short = draw.integers(1, 20, count).astype(np.int32)
    none = np.zeros(count, dtype=np.int32)
    stages = (
        Call(pool="rank", takes=some, input_tokens=short, output_tokens=none, call_count=3, is_seen=False),
        Wait(takes=some, duration_s=durations[0]),
        Call(
            pool="prefill",
            takes=many,
            input_tokens=rows.input_tokens,
            output_tokens=np.minimum(rows.output_tokens, 1).astype(np.int32),
        ),
        Transfer(takes=going, duration_s=durations[1], latency_s=unit_s * float(draw.integers(0, 2))),
        Call(
            pool="decode",
            takes=going,
            input_tokens=rows.input_tokens + np.int32(1),
            output_tokens=rows.output_tokens - np.int32(1),
            kv_delivered=True,
        ),
    )
    return Pools(fleets={name: random_pool(draw) for name in ("rank", "prefill", "decode")}, stages=stages)


@dataclass
class Warden:
    """Moves a door by what it sees, and remembers it."""

    doors: list[Door]
    views: list[FleetView] = field(default_factory=list)

    def __call__(self, view: FleetView) -> list[Happening]:
        self.views.append(view)
        pressure = int(view.waiting.sum()) + view.arrived_count + int(10 * view.kv_used_fraction.max())
        pressure += 0 if view.ttft_p90_s is None else round(view.ttft_p90_s * 100)
        door = self.doors[pressure // 3 % len(self.doors)]
        return [Happening(time_s=view.time_s, kind="door", replicas=(), door=door, reason=f"at {pressure}")]


@dataclass
class Wardens:
    """Makes one for each replay; the last one has seen what happened."""

    doors: list[Door]
    last: Warden | None = None

    def __call__(self) -> Warden:
        self.last = Warden(self.doors)
        return self.last


def with_stand_in(draw: np.random.Generator, rows: Trace, pools: Pools) -> Pools:
    """The system with a pool that answers some requests itself, and others where a door sends them to it."""
    nobody = np.zeros(rows.request_count, dtype=np.bool_)
    *side, prefill, transfer, decode = pools.stages
    own = ~prefill.takes
    small = Call(
        pool="small",
        takes=own,
        answer="small",
        instead=~nobody,
        input_tokens=rows.input_tokens,
        output_tokens=rows.output_tokens,
    )
    main = [replace(stage, answer="main", instead=nobody) for stage in (prefill, transfer, decode)]
    return Pools(fleets={**pools.fleets, "small": random_pool(draw)}, stages=(*side, *main, small))


def with_gates(draw: np.random.Generator, rows: Trace, pools: Pools) -> Pools:
    """A door in front of everything, or before prefill alone, or both, and a smaller model behind them."""
    count = rows.request_count
    tick_s = float(draw.choice([0.02, 0.037, 0.2]))

    def gate(name: str, takes, watched) -> Gate:
        return Gate(
            name=name,
            takes=takes,
            watched=watched,
            controllers=Wardens([Door(), *(replace(random_door(draw), wait_cap_s=None) for _ in range(3))]),
            tick_s=tick_s,
            door=random_door(draw) if draw.random() < 0.3 else Door(),
            batch=draw.random(count) < 0.4 if draw.random() < 0.7 else None,
            clients=Clients(attempt_count=int(draw.choice([1, 2, 4])), backoff_s=float(draw.choice([0.0, 0.02, 0.1]))),
            retry_after_s=float(draw.choice([0.0, 0.04])),
            session_idle_s=float(draw.choice([0.0, 0.05, 0.3])),
            smaller=takes & (draw.random(count) < 0.8) if draw.random() < 0.9 else None,
            smaller_answer="small",
        )

    pools = with_stand_in(draw, rows, pools)
    stages, chance = list(pools.stages), draw.random()
    if chance > 0.3:
        before = gate("before prefill", stages[2].takes, ("prefill", "decode"))
        stages.insert(2, replace(before, answer="main", instead=None))
    if chance < 0.7:
        stages.insert(0, gate("all", np.ones(count, dtype=np.bool_), ("prefill", "decode", "rank")))
    return replace(pools, stages=tuple(stages))


def with_people(draw: np.random.Generator, rows: Trace) -> Trace:
    """Tenants and sessions."""
    count = rows.request_count
    tenant = draw.integers(-1, 3, count).astype(np.int32)
    session = draw.integers(-1, 6, count).astype(np.int32)
    return replace(rows, tenant=tenant, tenants=("a", "b", "c"), session=session)
