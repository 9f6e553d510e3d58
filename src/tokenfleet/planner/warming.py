"""What warming shared prefixes before an event does to its first minute."""

from dataclasses import replace

import numpy as np

from tokenfleet.contract import judge
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.slo import LatencyTarget, Slo
from tokenfleet.domain.trace import Ints, Trace
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.traffic import Traffic, cut

_MOST_PREFIXES = 20
_APART_S = 0.25
"""Between two warming requests."""
_FIRST_S = 60.0
_WATCHED = Slo(
    latency=tuple(LatencyTarget(metric="ttft", quantile=quantile, limit_s=float("inf")) for quantile in (0.5, 0.99)),
    error_rate_fraction=1.0,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class HotPrefix:
    """A beginning that many prompts of the event share."""

    token_count: int
    request_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class FirstMinute:
    """Requests that arrive in the first minute of the event."""

    ttft_p50_s: float | None
    ttft_p99_s: float | None
    cached_fraction: float
    """Of their input tokens, served from the prefix cache."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Warmed:
    """The first minute on replicas that have just started, with and without warming."""

    prefixes: tuple[HotPrefix, ...]
    """The most used first."""
    request_count: int
    """Requests that warm them: each prefix once on each replica, where the router deals evenly."""
    lead_s: float
    """How long before the event the first is sent."""
    cold: FirstMinute
    warm: FirstMinute


def warmed(replays: Replays, traffic: Traffic, replica: ReplicaPhysics, count: int) -> Warmed | None:
    """Replays the event on replicas with empty caches, then with their hottest prefixes sent ahead.

    Args:
        replays: The door to the simulator.
        traffic: The event; its window is the time of the event.
        replica: What serves it, with its prefix cache on.
        count: Replicas.

    Returns:
        ``None`` where prompts share no beginning, or nothing keeps it.
    """
    first = int(np.searchsorted(traffic.trace.arrival_s, traffic.window_s[0]))
    event = cut(traffic, first, traffic.trace.request_count)
    roots = _roots(event.trace)
    if roots is None or not replica.deployment.engine.prefix_caching:
        return None
    hot = _hottest(event.trace, roots, replica.kv_block_tokens)
    if not len(hot):
        return None
    ahead = _ahead(event, hot, count)
    uses = np.bincount(roots[roots >= 0])
    tokens = event.trace.prefixes.token_count if event.trace.prefixes is not None else np.zeros(0)
    return Warmed(
        prefixes=tuple(HotPrefix(token_count=int(tokens[node]), request_count=int(uses[node])) for node in hot),
        request_count=len(hot) * count,
        lead_s=ahead.window_s[0] - event.window_s[0],
        cold=_first_minute(replays.run(event, replica, count), event),
        warm=_first_minute(replays.run(ahead, replica, count), ahead),
    )


def _roots(trace: Trace) -> Ints | None:
    """The root of each request's path, -1 for none."""
    if trace.prefix_node is None or trace.prefixes is None or not len(trace.prefixes.parent):
        return None
    root = np.arange(len(trace.prefixes.parent), dtype=np.int32)
    parent = trace.prefixes.parent
    for node in range(len(parent)):
        # A parent comes before its children, so its own root is known.
        if parent[node] >= 0:
            root[node] = root[parent[node]]
    nodes = trace.prefix_node
    return np.where(nodes >= 0, root[np.maximum(nodes, 0)], -1).astype(np.int32)


def _hottest(trace: Trace, roots: Ints, block_tokens: int) -> Ints:
    """Roots that several requests share and that fill a block, by the tokens they would save."""
    if trace.prefixes is None:
        return np.zeros(0, dtype=np.int32)
    tokens = trace.prefixes.token_count
    uses = np.bincount(roots[roots >= 0], minlength=len(tokens))
    saved = np.where((uses > 1) & (tokens >= block_tokens), (uses - 1) * tokens.astype(np.int64), 0)
    order = np.argsort(-saved, kind="stable")[:_MOST_PREFIXES]
    return order[saved[order] > 0].astype(np.int32)


def _ahead(event: Traffic, hot: Ints, count: int) -> Traffic:
    """The event after one short request per hot prefix and replica."""
    trace = event.trace
    if trace.prefixes is None or trace.prefix_node is None:
        raise ValueError("there is nothing to warm without prefixes")
    nodes = np.repeat(hot, count)
    lead_s = (len(nodes) + 1) * _APART_S
    ones = np.ones(len(nodes), dtype=np.int32)

    def column(values: Ints | None) -> Ints | None:
        return None if values is None else np.concatenate([-ones, values]).astype(np.int32)

    longer = replace(
        trace,
        arrival_s=np.concatenate([np.arange(len(nodes)) * _APART_S, trace.arrival_s + lead_s]),
        input_tokens=np.concatenate([trace.prefixes.token_count[nodes] + 1, trace.input_tokens]).astype(np.int32),
        output_tokens=np.concatenate([ones, trace.output_tokens]).astype(np.int32),
        prefix_node=np.concatenate([nodes, trace.prefix_node]).astype(np.int32),
        session=column(trace.session),
        tenant=column(trace.tenant),
        priority=None if trace.priority is None else np.concatenate([np.zeros_like(ones), trace.priority]),
        kv_delivered=None,
        observed=None,
    )
    return Traffic(longer, (event.window_s[0] + lead_s, event.window_s[1] + lead_s))


def _first_minute(record: RunRecord, event: Traffic) -> FirstMinute:
    start_s = event.window_s[0]
    window_s = start_s, min(event.window_s[1], start_s + _FIRST_S)
    inside = (record.arrival_s >= window_s[0]) & (record.arrival_s < window_s[1])
    median, tail, _ = judge(record, _WATCHED, peak_only=True, window_s=window_s)
    total = int(record.input_tokens[inside].sum(dtype=np.int64))
    cached = int(record.cached_tokens[inside].sum(dtype=np.int64))
    return FirstMinute(
        ttft_p50_s=median.predicted, ttft_p99_s=tail.predicted, cached_fraction=cached / total if total else 0.0
    )
