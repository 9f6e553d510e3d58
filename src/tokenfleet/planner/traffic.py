"""The traffic a plan is judged on: a trace, its peak window, and cuts of it."""

import math
from dataclasses import replace
from functools import cached_property, lru_cache

import numpy as np

from tokenfleet import workload
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.itself import Itself
from tokenfleet.domain.plan import Does
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import DAY_S
from tokenfleet.domain.trace import Floats, Ints, PrefixTree, Trace, rows_of

_WARM_UP_S = 600.0
FOLLOWING_REQUESTS = 20_000
"""Requests after a shock that are replayed to see it settle: a queue drains for longer than it takes to break."""
_RUN_TOKENS = 64
"""Length of the pieces in which prompts share their beginnings, when they are made to."""
_INPUT_POINTS = 12
_MANY = 100_000


@dataclass(frozen=True, slots=True)
class Traffic:
    """A trace and the window in which it asks most of a fleet."""

    trace: Trace
    window_s: tuple[float, float]

    @property
    def window_length_s(self) -> float:
        """Length of the peak window."""
        return self.window_s[1] - self.window_s[0]

    @property
    def peak_rate_per_s(self) -> float:
        """Requests per second that arrive in the peak window."""
        start_s, end_s = self.window_s
        arrivals = self.trace.arrival_s
        return float(((arrivals >= start_s) & (arrivals < end_s)).sum()) / (end_s - start_s)

    @property
    def mean_rate_per_s(self) -> float:
        """Requests per second over the whole trace."""
        return self.trace.request_count / max(self.trace.duration_s, self.window_length_s)


@dataclass(frozen=True)
class Demand:
    """What arrives in the peak window, on average."""

    rate_per_s: float
    input_tokens: Floats
    """Prompt tokens of each request that no cache can serve, see :func:`fresh_tokens`."""
    output_tokens: Floats
    context_tokens: Floats
    """Prompt tokens of each request, cached ones included."""

    def part_of(self, does: Does) -> "Demand":
        """What comes to a pool that does a part of the work: prompts to the first token, or all that follows it."""
        one = np.ones(len(self.input_tokens))
        if does == "prefills":
            return replace(self, output_tokens=one)
        return replace(self, input_tokens=one) if does == "decodes" else self

    @cached_property
    def mean_output_tokens(self) -> float:
        """Mean of ``output_tokens``."""
        return float(self.output_tokens.mean())

    @cached_property
    def mean_context_tokens(self) -> float:
        """Mean of ``context_tokens``."""
        return float(self.context_tokens.mean())

    @cached_property
    def likely_input_tokens(self) -> tuple[int, ...]:
        """A dozen equally likely ``input_tokens``, each at least 1: prefill is not linear in the prompt."""
        points = (np.arange(_INPUT_POINTS) + 0.5) / _INPUT_POINTS
        return tuple(max(1, round(float(length))) for length in np.quantile(self.input_tokens, points))


def fresh_tokens(trace: Trace, *, caching: bool) -> Floats:
    """Prompt tokens that no cache can serve: all, or those that no earlier request brought when prefixes are cached.

    At least one: an engine always computes the last token of a prompt.
    """
    inputs = trace.input_tokens.astype(np.float64)
    if not caching:
        return inputs
    return np.maximum(1.0, inputs - workload.shared_input_tokens(trace))


def demand(traffic: Traffic, *, caching: bool) -> Demand:
    """Rate and lengths of the requests that arrive in the peak window."""
    start_s, end_s = traffic.window_s
    trace = traffic.trace
    inside = (trace.arrival_s >= start_s) & (trace.arrival_s < end_s)
    return Demand(
        rate_per_s=float(inside.sum()) / (end_s - start_s),
        input_tokens=fresh_tokens(trace, caching=caching)[inside],
        output_tokens=trace.output_tokens.astype(np.float64)[inside],
        context_tokens=trace.input_tokens.astype(np.float64)[inside],
    )


def stretch(traffic: Traffic, request_limit: int) -> Traffic:
    """The part of the traffic around its peak window that a search can afford.

    Whole when it has at most ``request_limit`` requests. Else ten minutes of warm-up (fewer if they alone exceed
    the limit), the window, and as many requests after it as were waited for before: enough to see the queue drain.
    """
    if traffic.trace.request_count <= request_limit:
        return traffic
    return cut(traffic, *_rows_of_stretch(traffic, request_limit))


def followed(traffic: Traffic, request_limit: int) -> Traffic:
    """The same stretch with more of what comes after its peak, up to ``FOLLOWING_REQUESTS``."""
    trace = traffic.trace
    if trace.request_count <= request_limit:
        return traffic
    first, last = _rows_of_stretch(traffic, request_limit)
    peak_last = int(np.searchsorted(trace.arrival_s, traffic.window_s[1]))
    return cut(traffic, first, max(last, min(trace.request_count, peak_last + FOLLOWING_REQUESTS)))


def _rows_of_stretch(traffic: Traffic, request_limit: int) -> tuple[int, int]:
    trace = traffic.trace
    start_s, end_s = traffic.window_s
    peak_first, peak_last = (int(i) for i in np.searchsorted(trace.arrival_s, [start_s, end_s]))
    spare = max(0, request_limit - (peak_last - peak_first))
    warm_first = int(np.searchsorted(trace.arrival_s, start_s - _WARM_UP_S))
    first = max(warm_first, peak_first - math.ceil(spare * 3 / 4))
    return first, min(trace.request_count, peak_last + spare // 4)


def cut(traffic: Traffic, first: int, last: int) -> Traffic:
    """Requests ``first`` to ``last`` (excluded), with second 0 at the first of them or at the start of the window."""
    trace = traffic.trace
    part = slice(first, last)
    origin_s = min(float(trace.arrival_s[first]), traffic.window_s[0])
    nodes, tree = _used_prefixes(trace, part)
    inside = rows_of(trace, part)
    shorter = replace(
        inside,
        arrival_s=inside.arrival_s - origin_s,
        prefix_node=nodes,
        prefixes=tree,
        start_utc=None,
        time_of_day_s=(trace.time_of_day_s + origin_s) % DAY_S,
    )
    start_s, end_s = traffic.window_s
    return Traffic(shorter, (start_s - origin_s, end_s - origin_s))


def _used_prefixes(trace: Trace, part: slice) -> tuple[Ints | None, PrefixTree | None]:
    """The shared runs that the requests of ``part`` stand on, numbered anew: a replay builds the whole tree."""
    if trace.prefix_node is None or trace.prefixes is None:
        return None, None
    if len(trace.prefixes.parent) == 0:
        return trace.prefix_node[part], trace.prefixes
    nodes, parent = trace.prefix_node[part], trace.prefixes.parent
    used = np.zeros(len(parent), dtype=np.bool_)
    used[nodes[nodes >= 0]] = True
    # A parent comes before its children, so one pass from the back reaches every root.
    for node in range(len(parent) - 1, -1, -1):
        if used[node] and parent[node] >= 0:
            used[parent[node]] = True
    number = np.where(used, np.cumsum(used) - 1, -1).astype(np.int32)
    kept = parent[used]
    tree = PrefixTree(
        parent=np.where(kept >= 0, number[kept], -1).astype(np.int32), token_count=trace.prefixes.token_count[used]
    )
    return np.where(nodes >= 0, number[nodes], -1).astype(np.int32), tree


def _grower(trace: Trace) -> workload.Grower:
    """What binds a fleet is asked at a dozen loads of one short trace; of a long one nothing is kept."""
    return _known_grower(Itself(trace)) if trace.request_count < _MANY else workload.Grower(trace)


def at_load(traffic: Traffic, factor: float) -> Traffic | None:
    """The same traffic with ``factor`` times the demand; the peak window stays where it is.

    Returns:
        ``None`` where so thin a traffic has no request left.
    """
    if factor == 1.0:
        return traffic
    try:
        return Traffic(_grower(traffic.trace).grown(factor), traffic.window_s)
    except BadInput:
        if factor > 1.0:
            raise
        return None


@lru_cache(maxsize=4)
def _known_grower(trace: Itself[Trace]) -> workload.Grower:
    return workload.Grower(trace.value)


def with_inputs_capped(traffic: Traffic, cap_tokens: int) -> Traffic:
    """The same requests with prompts cut to ``cap_tokens``."""
    return Traffic(workload.cut_inputs(traffic.trace, cap_tokens), traffic.window_s)


def with_hits(traffic: Traffic, fraction: float) -> Traffic:
    """The same requests, of each prompt a share the beginning of one text that all have in common.

    A prefix cache serves that share to all but the first of them, as long as it holds the text: the best it can do,
    where everybody's history is different.

    Args:
        traffic: Whatever it shared before is forgotten.
        fraction: Share of each prompt, 0 to 1; to ``_RUN_TOKENS`` tokens.
    """
    trace = traffic.trace
    runs = (trace.input_tokens * fraction / _RUN_TOKENS).astype(np.int32)
    count = int(runs.max(initial=0))
    tree = PrefixTree(
        parent=np.arange(-1, count - 1, dtype=np.int32), token_count=np.full(count, _RUN_TOKENS, dtype=np.int32)
    )
    return Traffic(replace(trace, prefix_node=(runs - 1).astype(np.int32), prefixes=tree), traffic.window_s)
