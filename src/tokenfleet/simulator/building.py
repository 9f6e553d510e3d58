"""Writes trace and fleet into the buffer that the kernel runs in."""

import contextlib
import mmap
import sys

import numpy as np
import numpy.typing as npt

from tokenfleet.control import WEIGHT_ONE
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.trace import Trace
from tokenfleet.simulator import layout as at
from tokenfleet.simulator.bins import gap_bounds_ps, gap_guesses
from tokenfleet.simulator.classes import combinations
from tokenfleet.simulator.equipping import write_group, write_replica
from tokenfleet.simulator.placing import (
    Buffer,
    Places,
    block_sizes,
    descent,
    node_end,
    node_words,
    place,
    priority_levels,
    ring_size,
)
from tokenfleet.simulator.pools import bounds_of, write_berths, write_pools
from tokenfleet.simulator.stretches import MANY, in_stretches

PS_PER_S = 1e12
_MOST_WORDS = 1 << 31
"""16 GiB: a place in the buffer has 31 bits where it shares a word."""
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
    memory = _room_for(places, more_words, trace, fleet)
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
    write_berths(memory, places.berths.start, fleet)
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


def empty_buffer(words: int, sparse_words: int = 0) -> Buffer:
    """Zeros from the start of a cache line on, where sections start too: a row of eight words lies in one line.

    Args:
        words: How many.
        sparse_words: Those in front of which a short replay touches a little here and there: caches, rings. In pages of
            two megabytes, which numpy asks for, to clear them would take as long as to replay ten thousand requests.
    """
    if sys.platform != "linux" or sparse_words * 8 < mmap.PAGESIZE:
        zeros = np.zeros(words + 7, dtype=np.int64)
        start = -(zeros.ctypes.data // 8) % 8
        return zeros[start : start + words]
    pages = mmap.mmap(-1, words * 8, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with contextlib.suppress(OSError):  # a system without large pages refuses the advice
        pages.madvise(mmap.MADV_HUGEPAGE)
        pages.madvise(mmap.MADV_NOHUGEPAGE, 0, sparse_words * 8 // mmap.PAGESIZE * mmap.PAGESIZE)
    return np.frombuffer(pages, dtype=np.int64)


def _room_for(places: Places, more_words: int, trace: Trace, fleet: Fleet) -> Buffer:
    """The buffer, empty; the machine says at once where it has not so much."""
    words = places.words + more_words
    replicas = sum(group.replica_count for group in fleet.groups)
    what = f"{trace.request_count:,} requests on {replicas:,} replicas take {words * 8 / 2**30:,.0f} GiB to replay"
    if words >= _MOST_WORDS:
        raise BadInput.at("replicas", f"{what}, more than a replay can hold", "fewer replicas, less traffic")
    try:
        return empty_buffer(words, places.nodes.start if trace.request_count < MANY else 0)
    except (MemoryError, OSError):
        raise BadInput.at("replicas", f"{what}, more than this machine has", "fewer replicas, less traffic") from None


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
        (at.POOLS_END, places.pools.stop),
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


def write_nodes(memory: Buffer, places: Places, trace: Trace, fleet: Fleet) -> None:
    """The prefix tree: parents by row, ends in blocks, so that nothing is divided where a path is walked."""
    if trace.prefixes is None:
        return
    rows = memory[places.nodes.start : places.nodes.stop].reshape(-1, node_words(fleet))
    parent = trace.prefixes.parent.astype(np.int64)
    rows[:, at.PARENT] = np.where(parent < 0, at.NONE, places.nodes.start + node_words(fleet) * parent)
    depth_tokens = descent(trace.prefixes).depth_tokens
    for end, block_tokens in enumerate(block_sizes(fleet), at.FIRST_END):
        rows[:, end] = depth_tokens // block_tokens


def write_requests(rows: Buffer, trace: Trace) -> None:
    """One row per request, written in place: a long trace has no room for copies."""
    levels = priority_levels(trace)

    def write(part: slice) -> None:
        mine = rows[part]
        mine[:, at.READY] = np.rint(trace.arrival_s[part] * PS_PER_S)
        mine[:, at.LENGTHS] = trace.output_tokens[part].astype(np.int64) << 32 | trace.input_tokens[part]
        mine[:, at.FIRST_TOKEN] = -1
        if trace.kv_delivered is not None:
            mine[trace.kv_delivered[part], at.FIRST_TOKEN] = at.DELIVERED
        mine[:, at.FINISH] = -1
        if trace.priority is not None:
            mine[:, at.HISTORY] = np.searchsorted(levels, trace.priority[part]) << 56

    in_stretches(trace.request_count, write)


def looks_up(trace: Trace, prefix_node: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    """Requests that share a prefix and come without its KV: those that a prefix cache can help."""
    known: npt.NDArray[np.bool_] = prefix_node >= 0
    return known if trace.kv_delivered is None else known & ~trace.kv_delivered


def affinity_keys(trace: Trace) -> Buffer:
    """What binds a request to a replica: its session, else the root of its prefix, else nothing (``HALF``)."""
    keys = np.full(trace.request_count, at.HALF, dtype=np.int64)
    if trace.prefix_node is not None and trace.prefixes is not None:
        known = looks_up(trace, trace.prefix_node)
        keys[known] = descent(trace.prefixes).root[trace.prefix_node[known]]
    if trace.session is not None:
        known = trace.session >= 0
        keys[known] = trace.session[known]
    return keys
