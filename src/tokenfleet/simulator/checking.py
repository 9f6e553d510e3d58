"""What a replay refuses, before anything runs: every problem of trace, fleet and world at once."""

import difflib
import os
from collections.abc import Iterator
from typing import get_args

import numpy as np

from tokenfleet.control import MOST_GROUPS
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet, ReplicaGroup, Router
from tokenfleet.domain.replica import EngineSettings, FrontEnd, Preemption, ReplicaPhysics, Scheduling, Speculation
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.world import World
from tokenfleet.simulator import layout as at
from tokenfleet.simulator.checking_sharing import sharing_problems
from tokenfleet.simulator.checking_world import lane_fleet_problems, world_problems
from tokenfleet.simulator.layout import SGLANG
from tokenfleet.simulator.placing import cache_words, ring_size, state_words
from tokenfleet.simulator.rules import foreign_settings, owner_of, rule_set

LONGEST_S = 90 * 86_400.0
"""Longest trace: 90 days leave 13 days for a backlog within the picoseconds that 63 bits hold."""
MOST_REQUESTS = 200_000_000
MOST_REPLICAS = 1 << 20
"""Far more than any machine has the memory to replay; beyond, even counting what they take does."""
SHORTEST_SCRAPE_S = 1e-3
MOST_PRIORITIES = 128
_WORD_BYTES = 8
MOST_ROUTED = 1 << 16
"""Replicas that can be told apart by length and by tier."""


def check(trace: Trace, fleet: Fleet, world: World | None) -> None:
    """Raise one :class:`BadInput` with everything that is wrong with trace, fleet and world."""
    problems = [*_trace_problems(trace), *_fleet_problems(fleet), *sharing_problems(fleet, world)]
    if not problems:
        check_room(trace, fleet)
    if world is not None:
        problems += world_problems(world, trace.request_count, sum(group.replica_count for group in fleet.groups))
        problems += [] if world.lane is None else lane_fleet_problems(fleet)
    if problems:
        raise BadInput(problems)


def check_room(trace: Trace, fleet: Fleet) -> None:
    """Refuse more replicas than this machine has memory for, before anything as large as their number is made.

    Args:
        trace: What they would serve.
        fleet: A checked fleet.

    Raises:
        BadInput: what they take, and how many there is room for.
    """
    ring = ring_size(trace)
    words = at.REPLICA_WORDS + at.SAMPLE_WORDS + at.SCRAPE_WORDS
    sizes = [words + sum(state_words(trace, group, ring)) + sum(cache_words(trace, group)) for group in fleet.groups]
    counts = [group.replica_count for group in fleet.groups]
    taken_bytes = sum(count * size for count, size in zip(counts, sizes, strict=True)) * _WORD_BYTES
    machine_bytes = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    if taken_bytes > machine_bytes:
        held = f"{sum(counts):,} replicas take {taken_bytes / 2**30:,.0f} GiB of memory to replay"
        most = int(sum(counts) * machine_bytes / taken_bytes)
        what = f"{held}, and this machine has {machine_bytes / 2**30:,.0f} GiB"
        raise BadInput.at("replicas", what, f"less than {most:,} of them fit")


def _trace_problems(trace: Trace) -> Iterator[Problem]:
    count = trace.request_count
    arrival_s = np.asarray(trace.arrival_s)
    if count > MOST_REQUESTS:
        yield Problem("trace", f"{count} requests, at most {MOST_REQUESTS} fit", "replay a part of it")
    for name in ("input_tokens", "output_tokens", "prefix_node", "session", "kv_delivered", "priority"):
        column = getattr(trace, name)
        if column is not None and len(column) != count:
            yield Problem(f"trace.{name}", f"{len(column)} entries for {count} requests", "give one per request")
            return
    if not np.all(np.isfinite(arrival_s)):
        row = int(np.argmin(np.isfinite(arrival_s)))
        yield Problem(f"trace.arrival_s[{row}]", f"{arrival_s[row]} is not a time", "drop or mend the row")
        return
    if count and arrival_s[0] < 0:
        yield Problem("trace.arrival_s[0]", f"{arrival_s[0]} s is before the start of the trace", "start at 0")
    falls = arrival_s[1:] < arrival_s[:-1]
    if falls.any():
        row = int(np.argmax(falls)) + 1
        yield Problem(
            f"trace.arrival_s[{row}]",
            f"{arrival_s[row]} s comes after {arrival_s[row - 1]} s; {np.count_nonzero(falls)} such rows",
            "sort the requests by arrival",
        )
    yield from _span_problems(trace)
    if trace.priority is not None and len(np.unique(trace.priority)) > MOST_PRIORITIES:
        what = f"{len(np.unique(trace.priority))} different priorities, at most {MOST_PRIORITIES} fit"
        yield Problem("trace.priority", what, "group them")
    yield from _length_problems(trace)


def check_fleet(fleet: Fleet) -> None:
    """Refuse a fleet that cannot be, such as one too large, before anything as large as it is made."""
    problems = [*_fleet_problems(fleet)]
    if problems:
        raise BadInput(problems)


def check_span(trace: Trace) -> None:
    """Refuse a trace that is too long to be replayed, before anything is counted minute by minute."""
    problems = [*_span_problems(trace)]
    if problems:
        raise BadInput(problems)


def _span_problems(trace: Trace) -> Iterator[Problem]:
    if trace.request_count and trace.arrival_s[-1] > LONGEST_S:
        what = f"{trace.arrival_s[-1]} s, at most {LONGEST_S:.0f} s can be replayed"
        yield Problem(f"trace.arrival_s[{trace.request_count - 1}]", what, "cut the trace")


def _length_problems(trace: Trace) -> Iterator[Problem]:
    for name, least in (("input_tokens", 1), ("output_tokens", 0)):
        column = np.asarray(getattr(trace, name))
        if len(column) and column.min() < least:
            bad = np.flatnonzero(column < least)
            row = int(bad[0])
            yield Problem(f"trace.{name}[{row}]", f"{column[row]} tokens; {len(bad)} such rows", f"at least {least}")
    if trace.kv_delivered is not None and np.any(trace.kv_delivered & (np.asarray(trace.output_tokens) < 1)):
        row = int(np.argmax(trace.kv_delivered & (np.asarray(trace.output_tokens) < 1)))
        yield Problem(f"trace.kv_delivered[{row}]", "nothing is left to generate", "send it to no pool that decodes")
    if (trace.prefix_node is None) != (trace.prefixes is None):
        yield Problem("trace.prefixes", "prefix_node and prefixes go together", "give both or neither")
    elif trace.prefix_node is not None and trace.prefixes is not None:
        nodes = len(trace.prefixes.parent)
        if np.any(trace.prefix_node >= nodes) or np.any(trace.prefix_node < -1):
            yield Problem("trace.prefix_node", f"a node outside -1 .. {nodes - 1}", "name nodes of trace.prefixes")
        if np.any(trace.prefixes.parent >= np.arange(nodes)) or np.any(trace.prefixes.parent < -1):
            yield Problem("trace.prefixes.parent", "a parent must come before its children", "sort the nodes")
        if np.any(trace.prefixes.token_count < 0):
            yield Problem("trace.prefixes.token_count", "a negative number of tokens", "at least 0")


def _fleet_problems(fleet: Fleet) -> Iterator[Problem]:
    routers = get_args(Router)
    if fleet.router not in routers:
        near = difflib.get_close_matches(str(fleet.router), routers, n=1, cutoff=0.0)
        yield Problem("fleet.router", f"no policy is called {fleet.router!r}", f"did you mean {near[0]!r}?")
    if not SHORTEST_SCRAPE_S <= fleet.scrape_s < np.inf:
        yield Problem("fleet.scrape_s", f"{fleet.scrape_s} s", "at least a millisecond")
    weights = [group.weight_ratio for group in fleet.groups]
    if not all(0.0 < weight < np.inf for weight in weights) or max(weights, default=1.0) > 1000.0 * min(
        weights, default=1.0
    ):
        yield Problem("fleet.groups", f"weights {weights}", "positive, the largest at most 1000 times the smallest")
    replicas = sum(group.replica_count for group in fleet.groups)
    if replicas > MOST_REPLICAS:
        yield Problem("replicas", f"{replicas:,} replicas, at most {MOST_REPLICAS:,} fit", "take fewer replicas")
    if not fleet.groups:
        yield Problem("fleet.groups", "no replica group", "give at least one")
    for index, group in enumerate(fleet.groups):
        yield from _group_problems(f"fleet.groups[{index}]", group)
    yield from _smaller_problems(fleet)
    if fleet.router in ("by_length", "by_tier"):
        yield from _bound_problems(fleet)


def _smaller_problems(fleet: Fleet) -> Iterator[Problem]:
    smaller = [group.is_smaller_model for group in fleet.groups]
    if fleet.groups and (all(smaller) or smaller != sorted(smaller)):
        what = "groups of the smaller model before others, or nothing but those"
        yield Problem("fleet.groups", what, "put them behind the groups of the model that is asked for")


def _bound_problems(fleet: Fleet) -> Iterator[Problem]:
    if all(group.up_to is not None for group in fleet.groups if not group.is_smaller_model):
        what = f"every group has a bound, and {fleet.router} sends nobody beyond it"
        yield Problem("fleet.groups", what, "leave up_to out of one group: it serves all that the others do not")
    if len(fleet.groups) > MOST_GROUPS or sum(group.replica_count for group in fleet.groups) >= MOST_ROUTED:
        what = f"{len(fleet.groups)} groups for {fleet.router}"
        yield Problem("fleet.groups", what, f"at most {MOST_GROUPS}, of less than {MOST_ROUTED} replicas together")


def _group_problems(where: str, group: ReplicaGroup) -> Iterator[Problem]:
    replica = group.replica
    engine = replica.deployment.engine
    step = replica.step_time
    if group.replica_count < 1:
        yield Problem(f"{where}.replica_count", f"{group.replica_count} replicas", "at least 1")
    for name, value in (
        ("kv_block_count", replica.kv_block_count),
        ("kv_block_tokens", replica.kv_block_tokens),
        ("engine.max_batched_tokens", engine.max_batched_tokens),
        ("engine.max_sequence_count", engine.max_sequence_count),
    ):
        if value < 1:
            yield Problem(f"{where}.{name}", f"{value}", "at least 1")
    yield from _window_problems(where, replica)
    if rule_set(engine.name) != SGLANG and engine.max_batched_tokens < engine.max_sequence_count:
        yield Problem(
            f"{where}.engine.max_batched_tokens",
            f"{engine.max_batched_tokens} is less than max_sequence_count {engine.max_sequence_count}",
            "each running sequence needs one token of the budget",
        )
    needed = max(engine.max_batched_tokens, engine.max_sequence_count * engine.step_token_count) + 1
    if len(step.token_ps) < needed:
        yield Problem(f"{where}.step_time.token_ps", f"{len(step.token_ps)} entries", f"{needed} are needed")
    elif np.any(step.token_ps[1:needed] < 1):
        yield Problem(f"{where}.step_time.token_ps", "a step that takes no time", "at least 1 ps for 1 token and more")
    rates = ("sequence_ps", "context_ps", "window_ps", "window_tokens", "pair_ps", "eager_ps", "request_ps")
    values = {f"step_time.{name}": getattr(step, name) for name in (*rates, "window_pair_ps")}
    values |= {name: getattr(replica, name) for name in ("swap_block_count", "swap_block_ps")}
    for name, value in values.items():
        if value < 0:
            yield Problem(f"{where}.{name}", f"{value}", "at least 0")
    yield from _engine_problems(f"{where}.engine", engine)


def _window_problems(where: str, replica: ReplicaPhysics) -> Iterator[Problem]:
    growth, windowed = replica.kv_growth_block_count, replica.kv_window_block_count
    if min(growth, windowed) < 0 or (min(growth, windowed) == 0 and max(growth, windowed) != 1):
        what = f"{growth}, and {windowed} in layers with a window"
        yield Problem(f"{where}.kv_growth_block_count", what, "both from 1 on, or 1 where all layers are of one kind")
    if windowed > 0 and replica.kv_window_tokens < 1:
        yield Problem(f"{where}.kv_window_tokens", f"{replica.kv_window_tokens}", "at least 1")


def _engine_problems(where: str, engine: EngineSettings) -> Iterator[Problem]:
    if not 0.0 <= engine.watermark_fraction < 1.0:
        yield Problem(f"{where}.watermark_fraction", f"{engine.watermark_fraction}", "0 up to 1")
    if engine.long_prefill_tokens is not None and engine.long_prefill_tokens < 1:
        yield Problem(f"{where}.long_prefill_tokens", f"{engine.long_prefill_tokens}", "at least 1")
    for name, kinds in (("scheduling", Scheduling), ("preemption", Preemption), ("front_end", FrontEnd)):
        chosen, known = getattr(engine, name), get_args(kinds)
        if chosen not in known:
            near = difflib.get_close_matches(str(chosen), known, n=1, cutoff=0.0)
            yield Problem(f"{where}.{name}", f"no such kind is called {chosen!r}", f"did you mean {near[0]!r}?")
    for name, value in foreign_settings(engine).items():
        what = f"{value}, and the rules of {engine.name} have no such setting"
        yield Problem(f"{where}.{name}", what, f"leave it out, or take {owner_of(name)}")
    if engine.prefill_decode_interval_count < 0:
        yield Problem(f"{where}.prefill_decode_interval_count", f"{engine.prefill_decode_interval_count}", "at least 0")
    if engine.receive_interval_count < 1:
        yield Problem(f"{where}.receive_interval_count", f"{engine.receive_interval_count}", "at least 1")
    if engine.speculation is not None:
        yield from _speculation_problems(where, engine, engine.speculation)


def _speculation_problems(where: str, engine: EngineSettings, speculation: Speculation) -> Iterator[Problem]:
    here = f"{where}.speculation"
    if speculation.draft_token_count < 0:
        yield Problem(f"{here}.draft_token_count", f"{speculation.draft_token_count}", "at least 0")
    if not 0.0 <= speculation.acceptance_fraction <= 1.0:
        yield Problem(f"{here}.acceptance_fraction", f"{speculation.acceptance_fraction}", "0 to 1")
    decoded = engine.max_sequence_count * engine.step_token_count
    if rule_set(engine.name) != SGLANG and decoded > engine.max_batched_tokens >= engine.max_sequence_count:
        yield Problem(
            f"{where}.max_batched_tokens",
            f"{engine.max_batched_tokens} is less than max_sequence_count {engine.max_sequence_count} times the "
            f"{engine.step_token_count} tokens of a sequence and step",
            "fewer sequences or a larger step",
        )
    if engine.long_prefill_tokens is not None and engine.long_prefill_tokens < engine.step_token_count:
        what = f"{engine.long_prefill_tokens} is less than the {engine.step_token_count} tokens of a sequence and step"
        yield Problem(f"{where}.long_prefill_tokens", what, "at least as many")
    if engine.preemption == "swap":
        what = "swap is not replayed with speculative decoding: no engine of today has both"
        yield Problem(f"{where}.preemption", what, "leave one of them out")
