"""Small fleets and traces for tests of the simulator."""

from dataclasses import replace
from typing import get_args

import numpy as np

from tokenfleet.domain.fleet import Fleet, ReplicaGroup, Router
from tokenfleet.domain.replica import (
    Deployment,
    EngineSettings,
    ErrorBand,
    Layout,
    MemoryBudget,
    ReplicaPhysics,
    Speculation,
    StepTimeModel,
)
from tokenfleet.domain.trace import PrefixTree, Trace

MS = 1_000_000_000
"""Picoseconds."""


def engine(**settings) -> EngineSettings:
    """Synchronous scheduling, no prefix cache, chunked prefill with the gate."""
    plain = {
        "name": "test",
        "max_batched_tokens": 64,
        "max_sequence_count": 8,
        "block_tokens": 4,
        "memory_utilization_fraction": 0.9,
        "prefix_caching": False,
        "chunked_prefill": True,
        "full_prompt_gate": True,
        "async_scheduling": False,
    }
    return EngineSettings(**(plain | settings))


def step_time(*, token_ps=None, tokens=64, **terms) -> StepTimeModel:
    """Every step 10 ms unless told otherwise."""
    table = np.full(tokens + 1, 10 * MS, dtype=np.int64) if token_ps is None else np.asarray(token_ps, dtype=np.int64)
    names = ("sequence_ps", "context_ps", "window_ps", "window_tokens", "pair_ps", "eager_ps", "request_ps")
    return StepTimeModel(token_ps=table, **(dict.fromkeys(names, 0) | terms))


def physics(*, settings=None, time=None, blocks=100, fixed=0, swap=(0, 0), windows=(1, 0, 0)) -> ReplicaPhysics:
    """One replica of given engine settings, step time and pool.

    ``windows``: blocks of a stretch in layers that keep everything and in those with a window, and its tokens.
    """
    settings = settings or engine()
    time = time or step_time(tokens=max(settings.max_batched_tokens, settings.max_sequence_count))
    memory = MemoryBudget(
        fits=True,
        terms_bytes={},
        total_bytes=1,
        weights_bytes=1,
        kv_bytes_per_token=1,
        kv_fixed_bytes_per_sequence=0,
        kv_capacity_bytes=1,
        kv_capacity_tokens=blocks * settings.block_tokens,
        too_close_to_call=False,
        reasons=(),
    )
    deployment = Deployment(
        model="model", gpu="gpu", layout=Layout(), precision="bf16", kv_precision="bf16", engine=settings
    )
    return ReplicaPhysics(
        deployment=deployment,
        memory=memory,
        step_time=time,
        band=ErrorBand(step_time_factor=1.2, evidence="test"),
        kv_block_count=blocks,
        kv_block_tokens=settings.block_tokens,
        kv_fixed_block_count=fixed,
        kv_growth_block_count=windows[0],
        kv_window_block_count=windows[1],
        kv_window_tokens=windows[2],
        swap_block_count=swap[0],
        swap_block_ps=swap[1],
    )


def fleet(replica: ReplicaPhysics | None = None, *, count=1, router="least_in_flight") -> Fleet:
    """One group."""
    return Fleet(groups=(ReplicaGroup(replica=replica or physics(), replica_count=count),), router=router)


def trace(requests, **columns) -> Trace:
    """A trace from rows of (arrival in ms, input tokens, output tokens)."""
    rows = np.asarray(requests, dtype=float).reshape(-1, 3)
    return Trace(
        arrival_s=rows[:, 0] / 1000.0,
        input_tokens=rows[:, 1].astype(np.int32),
        output_tokens=rows[:, 2].astype(np.int32),
        **columns,
    )


def random_fleet(draw: np.random.Generator, *, name: str = "test", **settings) -> Fleet:
    """Any rule, tight memory as a rule, two groups of different physics now and then."""
    groups = []
    for _ in range(1 + (draw.random() < 0.2)):
        block_tokens = int(draw.choice([1, 2, 3, 4, 16]))
        sequences = int(draw.integers(1, 9))
        # The decodes of SGLang take nothing of the budget.
        batched = int(draw.integers(1 if name.startswith("sglang") else sequences, sequences + 40))
        drawn = engine(
            name=name,
            max_batched_tokens=batched,
            max_sequence_count=sequences,
            block_tokens=block_tokens,
            chunked_prefill=bool(draw.random() < 0.85),
            full_prompt_gate=bool(draw.random() < 0.6),
            async_scheduling=bool(draw.random() < 0.5),
            watermark_fraction=float(draw.choice([0.0, 0.0, 0.1, 0.3])),
            context_limit_tokens=None if draw.random() < 0.7 else int(draw.integers(20, 90)),
            **random_rules(draw, name),
            **({"prefix_caching": bool(draw.random() < 0.5)} | settings),
        )
        time = random_step_time(draw, max(batched, sequences))
        tokens = int(draw.integers(30, 250))
        fixed = int(draw.choice([0, 0, 1, 2]))
        swap = random_swap(draw, name, tokens // block_tokens)
        replica = physics(settings=drawn, time=time, blocks=tokens // block_tokens + 2, fixed=fixed, swap=swap)
        groups.append(ReplicaGroup(replica=replica, replica_count=int(draw.integers(1, 4))))
    router = str(draw.choice(["round_robin", "least_in_flight", "prefix_affinity"]))
    return Fleet(groups=tuple(groups), router=router)


def first_come(fleet: Fleet) -> Fleet:
    """The fleet with engines that do not schedule by priority."""

    def plain(group: ReplicaGroup) -> ReplicaGroup:
        deployment = group.replica.deployment
        deployment = replace(deployment, engine=replace(deployment.engine, scheduling="fcfs"))
        return replace(group, replica=replace(group.replica, deployment=deployment))

    return replace(fleet, groups=tuple(plain(group) for group in fleet.groups))


def with_any_router(draw: np.random.Generator, on: Fleet) -> Fleet:
    """The fleet behind any router, its groups of different weight and bound."""
    weights = draw.choice([1.0, 1.0, 2.0, 0.3], len(on.groups))
    bounds = [int(bound) for bound in draw.choice([0, 1, 2, 8, 20, 40], len(on.groups))]
    groups = tuple(
        replace(group, weight_ratio=float(weight), up_to=None if index == 0 else bound)
        for index, (group, weight, bound) in enumerate(zip(on.groups, weights, bounds, strict=True))
    )
    router = str(draw.choice(get_args(Router)))
    return Fleet(groups=groups, router=router, scrape_s=float(draw.choice([0.01, 0.0317, 0.5])))


def with_speculation(draw: np.random.Generator, on: Fleet) -> Fleet:
    """The fleet with engines that draft, and steps that take time for it."""
    groups = []
    for group in on.groups:
        drafted = int(draw.integers(0, 6))
        rules = group.replica.deployment.engine
        least = rules.max_sequence_count * (1 + drafted)
        longest = rules.long_prefill_tokens
        longest = longest if longest is None else max(longest, 1 + drafted)
        rules = replace(
            rules,
            max_batched_tokens=max(rules.max_batched_tokens, least),
            long_prefill_tokens=longest,
            preemption="recompute",
            swap_bytes=0,
            speculation=Speculation(
                draft_token_count=drafted, acceptance_fraction=float(draw.choice([0.0, 0.4, 0.8, 1.0]))
            ),
        )
        time = random_step_time(draw, rules.max_batched_tokens)
        if draw.random() < 0.7:
            cost = draw.integers(0, 3, rules.max_sequence_count).cumsum() * MS // 3
            time = replace(time, draft_ps=np.concatenate([[0], cost]).astype(np.int64))
        deployment = replace(group.replica.deployment, engine=rules)
        groups.append(replace(group, replica=replace(group.replica, deployment=deployment, step_time=time)))
    return replace(on, groups=tuple(groups))


def with_windows(draw: np.random.Generator, on: Fleet) -> Fleet:
    """The fleet with models whose layers have windows, all or some of them; as much memory as for one kind of layer."""
    groups = []
    for group in on.groups:
        growth, windowed = ((0, 1), (0, 1), (1, 1), (1, 1), (2, 3), (3, 1), (1, 4))[int(draw.integers(7))]
        replica = replace(
            group.replica,
            kv_growth_block_count=growth,
            kv_window_block_count=windowed,
            kv_window_tokens=int(draw.choice([1, 2, 3, 6, 13, 30])),
            kv_block_count=int(group.replica.kv_block_count * (growth + windowed * draw.choice([0.3, 0.6, 1.0]))) + 1,
        )
        groups.append(replace(group, replica=replica))
    return replace(on, groups=tuple(groups))


def with_smaller_model(draw: np.random.Generator, on: Fleet) -> Fleet:
    """The fleet with a group or two that serve a smaller model."""
    more = random_fleet(draw).groups
    return replace(on, groups=(*on.groups, *(replace(group, is_smaller_model=True) for group in more)))


def random_rules(draw: np.random.Generator, name: str) -> dict:
    """Settings that only some engines know, and the front end."""
    drawn = {"front_end": "serial" if draw.random() < 0.3 else "parallel"}
    if not name.startswith(("sglang", "trtllm")):
        drawn["long_prefill_tokens"] = None if draw.random() < 0.5 else int(draw.integers(1, 20))
        drawn["scheduling"] = "priority" if draw.random() < 0.4 else "fcfs"
    if name.startswith("sglang") and draw.random() < 0.5:
        drawn["prefill_decode_interval_count"] = int(draw.integers(1, 6))
    if name.startswith("sglang"):
        drawn["receive_interval_count"] = int(draw.spawn(1)[0].choice([1, 1, 2, 5, 11]))
    return drawn


def random_swap(draw: np.random.Generator, name: str, blocks: int) -> tuple[int, int]:
    """Blocks that host memory takes, often too few for all, and the time to move one."""
    if name.startswith(("sglang", "trtllm")) or draw.random() < 0.6:
        return 0, 0
    return int(draw.choice([3, blocks // 2, 10 * blocks])), int(draw.choice([0, MS // 2, 1_234_567]))


def random_step_time(draw: np.random.Generator, tokens: int) -> StepTimeModel:
    """Round figures half of the time, so that arrivals and step ends often fall together."""
    if draw.random() < 0.3:
        return step_time(tokens=tokens)
    unit = MS if draw.random() < 0.5 else 1_234_567
    table = (draw.integers(3, 9) * unit + draw.integers(0, 3, tokens + 1).cumsum() * unit).astype(np.int64)
    window = int(draw.choice([0, 5, 17, 40]))
    return step_time(
        token_ps=table,
        sequence_ps=int(draw.integers(0, 3)) * unit // 4,
        context_ps=int(draw.integers(0, 3)) * unit // 50,
        window_ps=int(draw.integers(0, 3)) * unit // 50 if window else 0,
        window_tokens=window,
        pair_ps=int(draw.integers(0, 3)) * unit // 100,
        window_pair_ps=int(draw.spawn(1)[0].integers(0, 3)) * unit // 100 if window else 0,
        eager_ps=int(draw.choice([0, 4, 12])) * unit,
        request_ps=int(draw.choice([0, 0, 3, 25])) * unit,
    )


def random_trace(draw: np.random.Generator, *, shared=False, delivered=False) -> Trace:
    """Up to 40 small requests, some too long for anybody, some prefill only, arrivals often at round times."""
    count = int(draw.integers(1, 41))
    gap_ms = float(draw.choice([2.0, 10.0, 40.0, 200.0]))
    arrival_ms = np.cumsum(draw.exponential(gap_ms, count))
    if draw.random() < 0.5:
        arrival_ms = np.floor(arrival_ms / 10.0) * 10.0
    columns = {}
    inputs = draw.integers(1, int(draw.choice([10, 40, 100])) + 1, count)
    outputs = np.minimum(draw.geometric(1.0 / draw.choice([2.0, 10.0, 30.0]), count), 150)
    outputs[draw.random(count) < 0.05] = 0
    if draw.random() < 0.5:
        columns["session"] = draw.integers(-1, 5, count).astype(np.int32)
    if draw.random() < 0.7:
        columns["priority"] = draw.integers(-2, int(draw.choice([0, 3])), count).astype(np.int32)
    if shared:
        columns |= random_prefixes(draw, inputs, outputs)
    if delivered:
        columns["kv_delivered"] = (draw.random(count) < draw.choice([0.3, 1.0])) & (outputs > 0)
    return trace(np.column_stack([arrival_ms, inputs, outputs]), **columns)


def random_copies(draw: np.random.Generator, *, name: str = "test") -> tuple[Trace, Fleet]:
    """Requests on few paths, output tokens shared as well, in little memory: blocks are written twice all the time."""
    sequences = int(draw.integers(2, 9))
    batched = int(draw.integers(sequences, sequences + 60))
    block_tokens = int(draw.choice([1, 2, 3, 4]))
    rules = engine(
        name=name,
        max_batched_tokens=batched,
        max_sequence_count=sequences,
        block_tokens=block_tokens,
        full_prompt_gate=bool(draw.random() < 0.6),
        async_scheduling=bool(draw.random() < 0.5),
        prefix_caching=True,
        **random_rules(draw, name),
    )
    blocks = int(draw.integers(30, 160)) // block_tokens + 2
    time = random_step_time(draw, batched)
    fixed = int(draw.choice([0, 0, 1]))
    replica = physics(settings=rules, time=time, blocks=blocks, fixed=fixed, swap=random_swap(draw, name, blocks))
    count, nodes = int(draw.integers(2, 60)), int(draw.integers(1, 7))
    parent = [-1 if node == 0 or draw.random() < 0.15 else int(draw.integers(0, node)) for node in range(nodes)]
    tokens = draw.integers(0, int(draw.choice([6, 20, 40])), nodes)
    tree = PrefixTree(parent=np.array(parent, dtype=np.int32), token_count=tokens.astype(np.int32))
    chosen = draw.integers(0, nodes, count).astype(np.int32)
    total = tree.depth_tokens[chosen] + draw.integers(0, 4, count) * (draw.random(count) < 0.5)
    inputs = np.where(draw.random(count) < 0.4, total, total * draw.random(count)).astype(int).clip(1)
    outputs = (total - inputs).clip(0) + draw.integers(0, 10, count) * (draw.random(count) < 0.5)
    arrival_ms = np.cumsum(draw.exponential(float(draw.choice([1.0, 5.0, 20.0, 60.0])), count))
    if draw.random() < 0.5:
        arrival_ms = np.floor(arrival_ms / 10.0) * 10.0
    rows = trace(np.column_stack([arrival_ms, inputs, outputs]), prefix_node=chosen, prefixes=tree)
    rows = replace(rows, priority=draw.integers(-2, 2, count).astype(np.int32))
    router = str(draw.choice(["round_robin", "least_in_flight", "prefix_affinity"]))
    return rows, fleet(replica, count=int(draw.choice([1, 1, 2])), router=router)


def random_overcommitted(draw: np.random.Generator) -> tuple[Trace, Fleet]:
    """Short prompts that come one by one and long outputs: SGLang lets in more than fits in the end."""
    block_tokens = int(draw.choice([1, 1, 2, 4]))
    rules = engine(
        name="sglang-0.5",
        max_sequence_count=32,
        block_tokens=block_tokens,
        async_scheduling=bool(draw.random() < 0.5),
        prefix_caching=bool(draw.random() < 0.7),
    )
    rules = replace(rules, prefill_decode_interval_count=int(draw.choice([0, 0, 3])))
    fixed = int(draw.choice([0, 0, 1]))
    blocks = int(draw.integers(200, 1200)) // block_tokens + fixed + 3
    replica = physics(settings=rules, time=random_step_time(draw, 64), blocks=blocks, fixed=fixed)
    count = int(draw.integers(15, 40))
    inputs = draw.integers(1, 12, count)
    outputs = draw.integers(80, 140, count)
    arrival_ms = np.cumsum(draw.exponential(float(draw.choice([8.0, 15.0, 30.0])), count))
    columns = random_prefixes(draw, inputs, outputs) if draw.random() < 0.5 else {}
    rows = trace(np.column_stack([arrival_ms, inputs, outputs]), **columns)
    return rows, fleet(replica, count=int(draw.choice([1, 1, 2])))


def random_prefixes(draw: np.random.Generator, inputs, outputs) -> dict:
    """A random tree; each request names a node whose path fits into its own tokens."""
    nodes = int(draw.integers(1, 9))
    parent = np.array([int(draw.integers(-1, node)) if node else -1 for node in range(nodes)], dtype=np.int32)
    tree = PrefixTree(parent=parent, token_count=draw.integers(0, 30, nodes).astype(np.int32))
    depth = tree.depth_tokens
    chosen = draw.integers(-1, nodes, len(inputs)).astype(np.int32)
    for row in range(len(inputs)):
        while chosen[row] >= 0 and depth[chosen[row]] > inputs[row] + outputs[row]:
            chosen[row] = parent[chosen[row]]
    return {"prefix_node": chosen, "prefixes": tree}


def with_sharing(draw: np.random.Generator, on: Fleet) -> Fleet:
    """The fleet with replicas that stand on the gpus of others, as a rule, be it of their own group's neighbours."""
    groups = tuple(
        replace(group, berth=None if draw.random() < 0.15 else int(draw.integers(0, 3))) for group in on.groups
    )
    return replace(on, groups=groups)


def with_pools(draw: np.random.Generator, on: Fleet, *, name: str = "test") -> Fleet:
    """The fleet as the first of two or three pools behind the same router, some of their replicas on the same gpus."""
    groups = list(on.groups)
    for pool in range(1, int(draw.integers(2, 4))):
        more = random_fleet(draw, name=name).groups
        groups += [replace(group, pool=pool) for group in more]
    return with_sharing(draw, replace(on, groups=tuple(groups)))
