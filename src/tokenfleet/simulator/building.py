"""Writes trace and fleet into the buffer that the kernel runs in."""

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from tokenfleet.control import WEIGHT_ONE
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.replica import EngineSettings
from tokenfleet.domain.trace import Trace
from tokenfleet.simulator import layout as at
from tokenfleet.simulator.bins import GAP_BINS, GUESSES, gap_bounds_ps, gap_guesses
from tokenfleet.simulator.classes import MOST_CLASSES, combinations
from tokenfleet.simulator.pools import bounds_of, pool_sizes, write_pools
from tokenfleet.simulator.rules import FIRST_RATIO, lone_is_free, rule_set

Buffer = npt.NDArray[np.int64]
PS_PER_S = 1e12
LONGEST_RING = 2048
"""Buckets of the ring at most; sequences with more steps to go are put in again on the far side."""
ROUTERS = {
    "round_robin": at.ROUND_ROBIN,
    "least_in_flight": at.LEAST_IN_FLIGHT,
    "prefix_affinity": at.PREFIX_AFFINITY,
    "power_of_two": at.POWER_OF_TWO,
    "least_loaded": at.LEAST_LOADED,
    "least_waiting": at.LEAST_WAITING,
    "least_kv": at.LEAST_KV,
    "by_length": at.BY_LENGTH,
    "by_tier": at.BY_TIER,
}
NO_CONTEXT_LIMIT = 1 << 40


@dataclass(frozen=True, slots=True)
class Section:
    """A stretch of the buffer."""

    start: int
    words: int

    @property
    def stop(self) -> int:
        """Index behind the last word."""
        return self.start + self.words


class Planner:
    """Hands out stretches of the buffer, one behind the other, each on a cache line of its own."""

    def __init__(self, used: int = at.HEADER_WORDS) -> None:
        self.used = used

    def take(self, words: int) -> Section:
        """The next ``words`` words."""
        section = Section(self.used, words)
        self.used = (section.stop + 7) // 8 * 8
        return section


@dataclass(frozen=True, slots=True)
class Places:
    """Where the sections of one buffer lie."""

    replicas: Section
    groups: Section
    tables: tuple[Section, ...]
    events: Section
    in_flight: Section
    tree: Section
    bounds: Section
    guesses: Section
    gaps: Section
    peak_gaps: Section
    samples: Section
    scrapes: Section
    pools: Section
    states: tuple[Section, ...]
    """Per replica: sequences, ring, bitmap, phases, priority levels, decodes by class."""
    caches: tuple[Section, ...]
    """Per replica: residents, their table, extents; empty without prefix cache."""
    nodes: Section
    path: Section
    requests: Section
    ledger: Section
    """Empty where nobody asks what requests took."""
    words: int


def ring_size(trace: Trace) -> int:
    """Buckets of the finish ring: a power of two beyond the longest output, within reason."""
    longest = int(trace.output_tokens.max()) if trace.request_count else 1
    return min(LONGEST_RING, max(2 * at.WORD_BITS, 1 << (longest + 2).bit_length()))


def priority_levels(trace: Trace) -> npt.NDArray[np.integer]:
    """The priorities that occur, the most urgent first."""
    return np.zeros(1, dtype=np.int64) if trace.priority is None else np.unique(trace.priority)


def state_words(trace: Trace, group: ReplicaGroup, ring: int) -> tuple[int, int, int, int, int, int]:
    """Words of one replica's sequences, ring, bitmap, phase counters, priority levels and decodes by class."""
    engine = group.replica.deployment.engine
    levels = 2 * len(priority_levels(trace)) if engine.scheduling == "priority" else 0
    sequences = engine.max_sequence_count * at.SEQUENCE_WORDS
    return sequences, ring, ring // at.WORD_BITS, group.replica.kv_block_tokens, levels, MOST_CLASSES


def cache_words(trace: Trace, group: ReplicaGroup) -> tuple[int, int, int]:
    """Words of one replica's residents, their hash tables and extents.

    A resident has a block at least, or a sequence that decodes in it; an extent has a block at least.
    """
    if not group.replica.deployment.engine.prefix_caching:
        return 0, 0, 0
    nodes = 0 if trace.prefixes is None else len(trace.prefixes.parent)
    blocks = group.replica.kv_block_count
    residents = min(nodes, blocks + group.replica.deployment.engine.max_sequence_count)
    return residents * at.RESIDENT_WORDS, table_words(residents), blocks * at.EXTENT_WORDS


def table_words(residents: int) -> int:
    """Words of all hash tables that so many residents can ask for, one behind the other."""
    largest = at.FIRST_TABLE
    while largest < at.SLOTS_PER_RESIDENT * residents:
        largest *= 2
    return 2 * largest - at.FIRST_TABLE


def ancestry(parent: npt.NDArray[np.integer]) -> tuple[Buffer, Buffer]:
    """For each node of a forest, its root and how many nodes are above it; each round doubles the way looked up."""
    root = np.where(parent < 0, np.arange(len(parent)), parent).astype(np.int64)
    above = (parent >= 0).astype(np.int64)
    while not np.array_equal(further := root[root], root):
        above += above[root]
        root = further
    return root, above


def longest_path(trace: Trace) -> int:
    """Nodes on the longest path of the prefix tree."""
    if trace.prefixes is None or not len(trace.prefixes.parent):
        return 0
    return int(ancestry(trace.prefixes.parent)[1].max()) + 1


def place(trace: Trace, fleet: Fleet, *, detailed: bool = False) -> Places:
    """Lay the sections out: what every event touches first, the requests last; a ledger if it is to be ``detailed``."""
    planner = Planner()
    replicas = [group for group in fleet.groups for _ in range(group.replica_count)]
    leaves = leaf_count(len(replicas))
    ring = ring_size(trace)
    sections = {
        "replicas": planner.take(len(replicas) * at.REPLICA_WORDS),
        "groups": planner.take(len(fleet.groups) * at.GROUP_WORDS),
        "events": planner.take(leaves),
        "in_flight": planner.take(len(replicas)),
        "tree": planner.take(2 * leaves),
        "bounds": planner.take(GAP_BINS + 1),
        "guesses": planner.take(GUESSES),
        "gaps": planner.take(GAP_BINS * (MOST_CLASSES if detailed else 1)),
        "peak_gaps": planner.take(GAP_BINS * (MOST_CLASSES if detailed else 1)),
        "samples": planner.take(len(replicas) * at.SAMPLE_WORDS),
        "scrapes": planner.take(len(replicas) * at.SCRAPE_WORDS),
        "pools": planner.take(len(pool_sizes(fleet)) * at.POOL_WORDS),
    }
    tables = tuple(planner.take(duration_words(group)) for group in fleet.groups)
    states = tuple(planner.take(sum(state_words(trace, group, ring))) for group in replicas)
    caches = tuple(planner.take(sum(cache_words(trace, group))) for group in replicas)
    nodes = planner.take((0 if trace.prefixes is None else len(trace.prefixes.parent)) * node_words(fleet))
    path = planner.take(longest_path(trace))
    requests = planner.take(trace.request_count * at.REQUEST_WORDS)
    return Places(
        tables=tables,
        states=states,
        caches=caches,
        nodes=nodes,
        path=path,
        requests=requests,
        ledger=planner.take(trace.request_count * at.LEDGER_WORDS if detailed else 0),
        words=planner.used,
        **sections,
    )


def block_sizes(fleet: Fleet) -> list[int]:
    """Tokens of a block, as they occur in the fleet."""
    return sorted({group.replica.kv_block_tokens for group in fleet.groups})


def node_words(fleet: Fleet) -> int:
    """Words of a node of the prefix tree: its parent, and its end in blocks of each size."""
    return at.FIRST_END + len(block_sizes(fleet))


def node_end(fleet: Fleet, group: ReplicaGroup) -> int:
    """The word of a node that has its end in blocks of a group."""
    return at.FIRST_END + block_sizes(fleet).index(group.replica.kv_block_tokens)


def leaf_count(replica_count: int) -> int:
    """Leaves of the tournament tree: a power of two."""
    return 1 << (replica_count - 1).bit_length()


def build(
    trace: Trace,
    fleet: Fleet,
    peak_window_s: tuple[float, float] | None,
    *,
    detailed: bool = False,
    more_words: int = 0,
) -> tuple[Buffer, Places]:
    """The buffer at time 0, every replica idle.

    Args:
        trace: Checked requests.
        fleet: A checked fleet.
        peak_window_s: Start and end of the window whose token gaps are counted apart.
        detailed: Whether to keep a ledger of what each request takes.
        more_words: Words at the end that are left for what is around the fleet.
    """
    places = place(trace, fleet, detailed=detailed)
    memory = np.zeros(places.words + more_words, dtype=np.int64)
    write_header(memory, places, trace, fleet)
    if peak_window_s is not None:
        memory[at.PEAK_START] = to_ps(peak_window_s[0])
        memory[at.PEAK_END] = to_ps(peak_window_s[1])
    memory[at.PATH_AT] = places.path.start
    apart = combinations(trace) if detailed else None
    memory[at.CLASS_COUNT] = 1 if apart is None else apart.count
    write_nodes(memory, places, trace, fleet)
    for index, group in enumerate(fleet.groups):
        row = places.groups.start + index * at.GROUP_WORDS
        write_group(memory, row, places.tables[index], group, ring_size(trace), node_end(fleet, group))
    number = 0
    for index, group in enumerate(fleet.groups):
        for _ in range(group.replica_count):
            write_replica(memory, places, trace, number, index, group, ring_size(trace))
            number += 1
    scrapes = memory[places.scrapes.start : places.scrapes.stop].reshape(-1, at.SCRAPE_WORDS)
    scrapes[:, at.REQUEST_COST] = request_costs(fleet)
    scrapes[:, at.UP_TO], scrapes[:, at.RANK] = bounds_of(fleet, priority_levels(trace))
    write_pools(memory, places.pools.start, fleet)
    rows = memory[places.requests.start : places.requests.stop].reshape(-1, at.REQUEST_WORDS)
    write_requests(rows, trace)
    if trace.prefix_node is not None:
        known = looks_up(trace, trace.prefix_node)
        rows[known, at.PREFIX] = places.nodes.start + node_words(fleet) * trace.prefix_node[known].astype(np.int64)
    if places.ledger.words:
        memory[at.LEDGER_AT] = places.ledger.start
        ledger_rows(memory, places)[:, at.SCHEDULED] = -1
    if apart is not None:
        rows[:, at.HISTORY] |= apart.of << 51
    if fleet.router == "prefix_affinity":
        rows[:, at.PLACE] = affinity_keys(trace)
    return memory, places


def ledger_rows(memory: Buffer, places: Places) -> Buffer:
    """The ledger, one row per request row."""
    return memory[places.ledger.start : places.ledger.stop].reshape(-1, at.LEDGER_WORDS)


def to_ps(time_s: float) -> int:
    """Seconds as integer picoseconds, within what the kernel can hold."""
    return int(min(max(round(time_s * PS_PER_S), 0), at.NEVER_PS - 1)) if np.isfinite(time_s) else at.NEVER_PS - 1


def write_header(memory: Buffer, places: Places, trace: Trace, fleet: Fleet) -> None:
    """Offsets, the tables of the gap bins, the empty tournament."""
    count = places.replicas.words // at.REPLICA_WORDS
    leaves = places.events.words
    for field, value in (
        (at.REQUESTS_AT, places.requests.start),
        (at.CLOCKED_COUNT, trace.request_count),
        (at.REPLICAS_AT, places.replicas.start),
        (at.REPLICA_COUNT, count),
        (at.EVENTS_AT, places.events.start),
        (at.IN_FLIGHT_AT, places.in_flight.start),
        (at.TREE_AT, places.tree.start),
        (at.TREE_LEAVES, leaves),
        (at.LEVEL_COUNT, len(priority_levels(trace))),
        (at.ROUTER, ROUTERS[fleet.router]),
        (at.POOL, places.pools.start),
        (at.POOLS_AT, places.pools.start),
        (at.LATE_PS, at.NEVER_PS),
        (at.ALARM_PS, at.NEVER_PS),
        (at.BOUNDS_AT, places.bounds.start),
        (at.GUESS_AT, places.guesses.start),
        (at.GAPS_AT, places.gaps.start),
        (at.PEAK_GAPS_AT, places.peak_gaps.start),
        (at.SAMPLES_AT, places.samples.start),
        (at.SCRAPES_AT, places.scrapes.start),
    ):
        memory[field] = value
    memory[places.bounds.start : places.bounds.stop] = gap_bounds_ps()
    memory[places.guesses.start : places.guesses.stop] = gap_guesses()
    memory[places.events.start : places.events.stop] = at.NEVER_PS
    tree = memory[places.tree.start : places.tree.stop]
    tree[leaves:] = np.arange(leaves)
    for node in range(leaves - 1, 0, -1):
        tree[node] = tree[2 * node]


def request_costs(fleet: Fleet) -> list[int]:
    """What a request costs each replica, by the weight of its group, for a router that weighs."""
    least = min(group.weight_ratio for group in fleet.groups)
    costs = [max(1, round(WEIGHT_ONE * least / group.weight_ratio)) for group in fleet.groups]
    return [cost for cost, group in zip(costs, fleet.groups, strict=True) for _ in range(group.replica_count)]


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


def drafting_ps(group: ReplicaGroup) -> Buffer:
    """By decoding sequences, what drafting takes; empty where nothing is drafted."""
    if group.replica.deployment.engine.step_token_count == 1:
        return np.zeros(0, dtype=np.int64)
    drafting = group.replica.step_time.draft_ps
    if drafting is None:
        return np.zeros(len(group.replica.step_time.token_ps), dtype=np.int64)
    return drafting


def kept_below(engine: EngineSettings) -> list[int]:
    """For each drafted token, the draw out of 2**31 below which it is kept with all before it."""
    speculation = engine.speculation
    if speculation is None:
        return []
    return [round(speculation.acceptance_fraction**place * 2**31) for place in range(1, engine.step_token_count)]


def duration_words(group: ReplicaGroup) -> int:
    """Words of the tables of one replica group: steps by tokens, drafting by sequences, what is kept of drafts."""
    kept = kept_below(group.replica.deployment.engine)
    return len(group.replica.step_time.token_ps) + len(drafting_ps(group)) + len(kept)


def write_group(memory: Buffer, row: int, table: Section, group: ReplicaGroup, ring: int, ends_at: int) -> None:
    """Physics and rules of one replica group; ``ends_at`` is its :func:`node_end`."""
    replica = group.replica
    engine = replica.deployment.engine
    step = replica.step_time
    drafting = drafting_ps(group)
    drafting_at = table.start + len(step.token_ps)
    kept_at = drafting_at + len(drafting)
    memory[table.start : table.stop] = np.concatenate([step.token_ps, drafting, kept_below(engine)])
    for field, value in (
        (at.TOKEN_TABLE_AT, table.start),
        (at.SEQUENCE_PS, step.sequence_ps),
        (at.CONTEXT_PS, step.context_ps),
        (at.WINDOW_PS, step.window_ps),
        (at.WINDOW_TOKENS, step.window_tokens),
        (at.PAIR_PS, step.pair_ps),
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
        (at.LAG, engine.async_scheduling and engine.speculation is None),
        (at.CONTEXT_LIMIT, NO_CONTEXT_LIMIT if engine.context_limit_tokens is None else engine.context_limit_tokens),
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
        (at.STEP_TOKENS, engine.step_token_count),
        (at.DRAFT_TABLE_AT, drafting_at if len(drafting) else at.NONE),
        (at.KEPT_AT, kept_at),
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
        (at.SPARE_SLOT, start),
        (at.RING_AT, start + sequences),
        (at.BITMAP_AT, start + sequences + ring_words),
        (at.PHASES_AT, start + sequences + ring_words + bitmap),
        (at.LEVELS_AT, start + sequences + ring_words + bitmap + phases),
        (at.CLASSES_AT, places.states[number].stop - MOST_CLASSES if memory[at.CLASS_COUNT] > 1 else row + at.DECODING),
    ):
        memory[row + field] = value
    write_cache(memory, row, places.caches[number].start, cache_words(trace, group))
    rows = np.arange(start, start + sequences, at.SEQUENCE_WORDS)
    memory[rows[:-1] + at.RUNNING_NEXT] = rows[1:]


def renew_replica(
    memory: Buffer, places: Places, trace: Trace, number: int, index: int, group: ReplicaGroup, ring: int
) -> None:
    """The replica as at the start, with nothing in its cache; what it has spent its time on stays counted."""
    row = places.replicas.start + number * at.REPLICA_WORDS
    state, cache = places.states[number], places.caches[number]
    memory[state.start : state.stop] = 0
    tables = cache.start + cache_words(trace, group)[0]
    memory[tables : memory[row + at.TABLE_AT] + memory[row + at.TABLE_MASK] + 1] = 0
    kept = np.r_[
        row + at.PREFILL_BUSY : row + at.PREEMPTIONS + 1, row + at.STEPS_WITH_PREFILL : row + at.PREFILL_PAIRS + 1
    ]
    spent = memory[kept]
    memory[row : row + at.REPLICA_WORDS] = 0
    memory[kept] = spent
    write_replica(memory, places, trace, number, index, group, ring)


def write_nodes(memory: Buffer, places: Places, trace: Trace, fleet: Fleet) -> None:
    """The prefix tree: parents by row, ends in blocks, so that nothing is divided where a path is walked."""
    if trace.prefixes is None:
        return
    rows = memory[places.nodes.start : places.nodes.stop].reshape(-1, node_words(fleet))
    parent = trace.prefixes.parent.astype(np.int64)
    rows[:, at.PARENT] = np.where(parent < 0, at.NONE, places.nodes.start + node_words(fleet) * parent)
    for end, block_tokens in enumerate(block_sizes(fleet), at.FIRST_END):
        rows[:, end] = trace.prefixes.depth_tokens // block_tokens


def write_requests(rows: Buffer, trace: Trace) -> None:
    """One row per request, written in place: a long trace has no room for copies."""
    if not trace.request_count:
        return
    rows[:, at.READY] = np.rint(trace.arrival_s * PS_PER_S)
    rows[:, at.LENGTHS] = trace.output_tokens
    rows[:, at.LENGTHS] <<= 32
    rows[:, at.LENGTHS] |= trace.input_tokens
    rows[:, at.FIRST_TOKEN] = -1 if trace.kv_delivered is None else np.where(trace.kv_delivered, at.DELIVERED, -1)
    rows[:, at.FINISH] = -1
    if trace.priority is not None:
        rows[:, at.HISTORY] = np.searchsorted(priority_levels(trace), trace.priority)
        rows[:, at.HISTORY] <<= 56


def looks_up(trace: Trace, prefix_node: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Requests that share a prefix and come without its KV: those that a prefix cache can help."""
    known: npt.NDArray[np.bool_] = prefix_node >= 0
    return known if trace.kv_delivered is None else known & ~trace.kv_delivered


def affinity_keys(trace: Trace) -> Buffer:
    """What binds a request to a replica: its session, else the root of its prefix, else nothing (``HALF``)."""
    keys = np.full(trace.request_count, at.HALF, dtype=np.int64)
    if trace.prefix_node is not None and trace.prefixes is not None:
        root, _ = ancestry(trace.prefixes.parent)
        known = looks_up(trace, trace.prefix_node)
        keys[known] = root[trace.prefix_node[known]]
    if trace.session is not None:
        known = trace.session >= 0
        keys[known] = trace.session[known]
    return keys
