"""Writes replica groups, and their idle replicas, into the buffer that the kernel runs in."""

from dataclasses import replace

import numpy as np

from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.replica import EngineSettings, ReplicaPhysics
from tokenfleet.domain.trace import Trace
from tokenfleet.simulator import layout as at
from tokenfleet.simulator.classes import MOST_CLASSES
from tokenfleet.simulator.placing import Buffer, Places, Section, cache_words, drafting_ps, kept_below, state_words
from tokenfleet.simulator.rules import FIRST_RATIO, frees_unhashed_last, lone_is_free, rule_set

NO_CONTEXT_LIMIT = 1 << 40


def block_shift(block_tokens: int) -> int:
    """Bits of a number of tokens that count those beyond the last whole block."""
    shift = block_tokens.bit_length() - 1
    return shift if 1 << shift == block_tokens else at.NO_SHIFT


def watermark_blocks(fraction: float, block_count: int) -> int:
    """Blocks that admission leaves free: a share of all, the null block that vLLM keeps for itself included."""
    return int(fraction * (block_count + 1))


def chunk_limits(engine: EngineSettings) -> tuple[tuple[int, int], tuple[int, int]]:
    """What a prompt gets of a step at most, among others and alone."""
    limit = at.NO_CHUNK_LIMIT if engine.long_prefill_tokens is None else engine.long_prefill_tokens
    return (at.LONG_CHUNK, limit), (at.LONE_CHUNK, at.NO_CHUNK_LIMIT if lone_is_free(engine.name) else limit)


def lag(engine: EngineSettings) -> bool:
    """Whether a step is fixed while the one before it runs."""
    return engine.async_scheduling and engine.speculation is None


def windows(replica: ReplicaPhysics) -> tuple[tuple[int, int], ...]:
    """What a stretch of context takes, and for how long in layers with a window."""
    growth, windowed = replica.kv_growth_block_count, replica.kv_window_block_count
    engine = replica.deployment.engine
    return (
        (at.GROWTH_BLOCKS, growth),
        (at.WINDOW_BLOCKS, windowed),
        (at.STRETCH_BLOCKS, growth + windowed),
        (at.BEHIND_TOKENS, replica.kv_window_tokens - 1),
        (at.FREE_LAG, lag(engine) and rule_set(engine.name) != at.SGLANG),
        (at.WINDOW_STRETCHES, replica.kv_window_stretch_count),
    )


def unhashed_last(replica: ReplicaPhysics) -> bool:
    """Whether freed blocks without a name are reused in turn with those that have one.

    Extents count stretches of context: where these take several blocks, or give some back on the way, freed ones
    without a name are reused first, as in later versions.
    """
    alike = replica.kv_growth_block_count == 1 and replica.kv_window_block_count == 0
    return alike and frees_unhashed_last(replica.deployment.engine.name)


def with_settled_cache(trace: Trace, fleet: Fleet) -> Fleet:
    """The fleet with the prefix cache as it is replayed where every layer has a window.

    The cache of a replay keeps what layers without a window hold. In such a model nothing is left of that, so where
    requests share prefixes its sequences hold their whole context, for others to find it; elsewhere nothing is cached.
    """

    def settled(group: ReplicaGroup) -> ReplicaGroup:
        replica = group.replica
        engine = replica.deployment.engine
        if replica.kv_growth_block_count or not engine.prefix_caching:
            return group
        if trace.prefix_node is not None:
            whole = replica.kv_window_block_count
            return replace(group, replica=replace(replica, kv_growth_block_count=whole, kv_window_block_count=0))
        deployment = replace(replica.deployment, engine=replace(engine, prefix_caching=False))
        return replace(group, replica=replace(replica, deployment=deployment))

    return replace(fleet, groups=tuple(settled(group) for group in fleet.groups))


def write_group(memory: Buffer, row: int, table: Section, group: ReplicaGroup, ring: int, ends_at: int) -> None:
    """Physics and rules of one replica group; ``ends_at`` is its :func:`node_end`."""
    replica = group.replica
    engine = replica.deployment.engine
    step = replica.step_time
    drafting = drafting_ps(group)
    drafting_at = table.start + len(step.token_ps)
    kept_at = drafting_at + len(drafting)
    memory[at.WINDOWED] |= replica.kv_window_block_count | step.window_pair_ps
    memory[table.start : table.stop] = np.concatenate([step.token_ps, drafting, kept_below(engine)])
    for field, value in (
        (at.TOKEN_TABLE_AT, table.start),
        (at.SEQUENCE_PS, step.sequence_ps),
        (at.CONTEXT_PS, step.context_ps),
        (at.WINDOW_PS, step.window_ps),
        (at.WINDOW_TOKENS, step.window_tokens),
        (at.PAIR_PS, step.pair_ps),
        (at.WINDOW_PAIR_PS, step.window_pair_ps),
        (at.EAGER_PS, step.eager_ps),
        (at.REQUEST_PS, step.request_ps),
        (at.MAX_BATCHED_TOKENS, engine.max_batched_tokens),
        (at.MAX_SEQUENCES, engine.max_sequence_count),
        (at.BLOCK_TOKENS, replica.kv_block_tokens),
        (at.BLOCK_SHIFT, block_shift(replica.kv_block_tokens)),
        (at.BLOCK_COUNT, replica.kv_block_count),
        (at.FIXED_BLOCKS, replica.kv_fixed_block_count),
        (at.WATERMARK_BLOCKS, watermark_blocks(engine.watermark_fraction, replica.kv_block_count)),
        (at.CHUNKED, engine.chunked_prefill),
        (at.FULL_PROMPT_GATE, engine.full_prompt_gate),
        (at.LAG, lag(engine)),
        *windows(replica),
        (at.CONTEXT_LIMIT, replica.context_limit_tokens or NO_CONTEXT_LIMIT),
        (at.RING_MASK, ring - 1),
        (at.PREFIX_CACHING, engine.prefix_caching),
        (at.RULES, rule_set(engine.name)),
        *chunk_limits(engine),
        (at.SERIAL_FRONT_END, engine.front_end == "serial"),
        (at.BY_PRIORITY, engine.scheduling == "priority"),
        (at.SWAP_BLOCKS, replica.swap_block_count),
        (at.SWAP_BLOCK_PS, replica.swap_block_ps),
        (at.GPU_COUNT, replica.deployment.layout.gpu_count),
        (at.NODE_END, ends_at),
        (at.DECODE_INTERVAL, engine.prefill_decode_interval_count),
        (at.RECEIVE_INTERVAL, engine.receive_interval_count),
        (at.STEP_TOKENS, engine.step_token_count),
        (at.DRAFT_TABLE_AT, drafting_at if len(drafting) else at.NONE),
        (at.KEPT_AT, kept_at),
        (at.UNHASHED_LAST, unhashed_last(replica)),
    ):
        memory[row + field] = value


def write_cache(memory: Buffer, row: int, start: int, words: tuple[int, int, int]) -> None:
    """The empty prefix cache of the replica at ``row``."""
    residents, tables, extents = words
    if extents == 0:
        memory[row + at.UNHASHED] = at.UNLIMITED
        return
    memory[row + at.UNHASHED] = memory[row + at.FREE_BLOCKS]
    memory[row + at.FRESH_RESIDENT] = start
    memory[row + at.TABLE_AT] = start + residents
    memory[row + at.TABLE_MASK] = at.FIRST_TABLE - 1
    memory[row + at.FRESH_EXTENT] = start + residents + tables


def write_replica(
    memory: Buffer, places: Places, trace: Trace, number: int, index: int, group: ReplicaGroup, ring: int
) -> None:
    """One idle replica: all blocks free, all sequence rows spare."""
    row = places.replicas.start + number * at.REPLICA_WORDS
    sequences, ring_words, bitmap, phases, _, _ = state_words(trace, group, ring)
    start = places.states[number].start
    for field, value in (
        (at.GROUP, places.groups.start + index * at.GROUP_WORDS),
        (at.NUMBER, number),
        (at.FREE_BLOCKS, group.replica.kv_block_count),
        (at.NEW_TOKEN_RATIO, FIRST_RATIO),
        (at.UNSEEN_ROUNDS, group.replica.deployment.engine.receive_interval_count),
        (at.SPARE_SLOT, start),
        (at.RING_AT, start + sequences),
        (at.BITMAP_AT, start + sequences + ring_words),
        (at.PHASES_AT, start + sequences + ring_words + bitmap),
        (at.HELD_AT, start + sequences + ring_words + bitmap + phases),
        (at.LEVELS_AT, start + sequences + ring_words + bitmap + phases),
        (at.CLASSES_AT, places.states[number].stop - MOST_CLASSES if memory[at.CLASS_COUNT] > 1 else row + at.DECODING),
    ):
        memory[row + field] = value
    if group.berth is not None:
        berth = places.berths.start + number * at.BERTH_WORDS
        memory[row + at.BERTH] = berth
        memory[berth + at.OWN_PS] = 0
        memory[berth + at.HELD] = at.NONE
    write_cache(memory, row, places.caches[number].start, cache_words(trace, group))
    spare = memory[start : start + sequences].reshape(-1, at.SEQUENCE_WORDS)
    spare[:-1, at.RUNNING_NEXT] = np.arange(start + at.SEQUENCE_WORDS, start + sequences, at.SEQUENCE_WORDS)


def forget_residents(memory: Buffer, places: Places, row: int, start: int) -> None:
    """No node of the prefix tree knows the residents of the replica at ``row`` any more; they lie from ``start`` on."""
    residents = np.arange(start, memory[row + at.FRESH_RESIDENT], at.RESIDENT_WORDS)
    nodes = memory[residents + at.NODE]
    in_use = nodes >= places.nodes.start  # a spare row holds the next spare one instead
    residents, nodes = residents[in_use], nodes[in_use]
    by_node = memory[nodes + at.HOLDER] & at.HALF == residents
    memory[nodes[by_node] + at.HOLDER] = at.NONE
    memory[nodes[~by_node] + at.OTHERS] -= 1


def renew_replica(
    memory: Buffer, places: Places, trace: Trace, number: int, index: int, group: ReplicaGroup, ring: int
) -> None:
    """The replica as at the start, with nothing in its cache; what it has spent its time on stays counted."""
    row = places.replicas.start + number * at.REPLICA_WORDS
    state, cache = places.states[number], places.caches[number]
    memory[state.start : state.stop] = 0
    tables = cache.start + cache_words(trace, group)[0]
    forget_residents(memory, places, row, cache.start)
    memory[tables : memory[row + at.TABLE_AT] + memory[row + at.TABLE_MASK] + 1] = 0
    kept = np.r_[
        row + at.PREFILL_BUSY : row + at.PREEMPTIONS + 1,
        row + at.STEPS_WITH_PREFILL : row + at.PREFILL_PAIRS + 1,
        row + at.KEPT_TOKENS : row + at.RECOMPUTED_TOKENS + 1,
    ]
    spent = memory[kept]
    memory[row : row + at.REPLICA_WORDS] = 0
    memory[kept] = spent
    write_replica(memory, places, trace, number, index, group, ring)
