"""Where everything lies in the buffer: how much each part of trace and fleet takes, one behind the other."""

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.itself import Itself
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import EngineSettings
from tokenfleet.domain.trace import PrefixTree, Trace
from tokenfleet.simulator import layout as at
from tokenfleet.simulator.bins import GAP_BINS, GUESSES
from tokenfleet.simulator.classes import MOST_CLASSES
from tokenfleet.simulator.pools import berth_words, pool_sizes
from tokenfleet.simulator.stretches import MANY

Buffer = npt.NDArray[np.int64]
LONGEST_RING = at.WORD_BITS * at.WORD_BITS
"""Buckets of the ring at most: one word has a bit for each word of its bitmap.

Sequences with more steps to go are put in again on the far side.
"""


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

    def take_for_each(self, fleet: Fleet, words: Sequence[int]) -> tuple[Section, ...]:
        """A stretch for each replica, of as many words as ``words`` says of its group."""
        return tuple(
            self.take(size) for group, size in zip(fleet.groups, words, strict=True) for _ in range(group.replica_count)
        )


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
    berths: Section
    """Empty where no replicas share their gpus."""
    states: tuple[Section, ...]
    """Per replica: sequences, ring, bitmap, phases with what windows need, priority levels, decodes by class."""
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
    """Words of one replica's sequences, ring, bitmap, phase counters, priority levels and decodes by class.

    Where layers have a window, counters of what is given back and the window rows follow those of what is taken.
    """
    engine = group.replica.deployment.engine
    phases = group.replica.kv_block_tokens
    if group.replica.kv_window_block_count:
        phases += phases + engine.max_sequence_count * at.WINDOW_ROW_WORDS
    levels = 2 * len(priority_levels(trace)) if engine.scheduling == "priority" else 0
    sequences = engine.max_sequence_count * at.SEQUENCE_WORDS
    return sequences, ring, ring // at.WORD_BITS, phases, levels, MOST_CLASSES


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


@dataclass(frozen=True, slots=True)
class Descent:
    """Where the nodes of a prefix tree stand."""

    root: Buffer
    longest_path: int
    """Nodes on the longest way from a root to a leaf."""
    depth_tokens: Buffer


def descent(tree: PrefixTree) -> Descent:
    """Where its nodes stand; known of the last few trees, as a search replays the same ones on one fleet after another.

    A large tree is asked about once, and nobody keeps what it takes.
    """
    return _known_descent(Itself(tree)) if len(tree.parent) < MANY else _descent(tree)


def _descent(tree: PrefixTree) -> Descent:
    """Each round doubles the way looked up."""
    parent = tree.parent
    root = np.where(parent < 0, np.arange(len(parent)), parent).astype(np.int64)
    above = (parent >= 0).astype(np.int64)
    while not np.array_equal(further := root[root], root):
        above += above[root]
        root = further
    return Descent(root, int(above.max(initial=-1)) + 1, tree.depth_tokens)


@lru_cache(maxsize=16)
def _known_descent(tree: Itself[PrefixTree]) -> Descent:
    # What is known of it must stay true.
    tree.value.parent.flags.writeable = False
    tree.value.token_count.flags.writeable = False
    return _descent(tree.value)


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


def place(trace: Trace, fleet: Fleet, *, detailed: bool = False) -> Places:
    """Lay the sections out: what every event touches first, the requests last; a ledger if it is to be ``detailed``."""
    planner = Planner()
    replica_count = sum(group.replica_count for group in fleet.groups)
    leaves = leaf_count(replica_count)
    ring = ring_size(trace)
    sections = {
        "replicas": planner.take(replica_count * at.REPLICA_WORDS),
        "groups": planner.take(len(fleet.groups) * at.GROUP_WORDS),
        "events": planner.take(leaves),
        "in_flight": planner.take(replica_count),
        "tree": planner.take(2 * leaves),
        "bounds": planner.take(GAP_BINS + 1),
        "guesses": planner.take(GUESSES),
        "gaps": planner.take(GAP_BINS * (MOST_CLASSES if detailed else 1)),
        "peak_gaps": planner.take(GAP_BINS * (MOST_CLASSES if detailed else 1)),
        "samples": planner.take(replica_count * at.SAMPLE_WORDS),
        "scrapes": planner.take(replica_count * at.SCRAPE_WORDS),
        "pools": planner.take(len(pool_sizes(fleet)) * at.POOL_WORDS),
        "berths": planner.take(berth_words(fleet)),
    }
    tables = tuple(planner.take(duration_words(group)) for group in fleet.groups)
    states = planner.take_for_each(fleet, [sum(state_words(trace, group, ring)) for group in fleet.groups])
    caches = planner.take_for_each(fleet, [sum(cache_words(trace, group)) for group in fleet.groups])
    nodes = planner.take((0 if trace.prefixes is None else len(trace.prefixes.parent)) * node_words(fleet))
    path = planner.take(0 if trace.prefixes is None else descent(trace.prefixes).longest_path)
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
