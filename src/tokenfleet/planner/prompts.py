"""What replicas compute of the prompts that arrive in the peak window, however many of them there are.

Where a conversation comes back, its last turn is in the cache of one replica, and a router that does not look for it
finds it there with one chance in as many as there are replicas; else an earlier turn may be where it went. Beginnings
that several conversations share are soon everywhere.
"""

from bisect import bisect_left
from dataclasses import field

import numpy as np
import numpy.typing as npt

from tokenfleet import workload
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Floats, Trace
from tokenfleet.planner.traffic import Traffic

Longs = npt.NDArray[np.int64]

_EDGES = np.array([0.0, 0.1, 0.2, 0.3, 0.4, 0.5, 0.6, 0.7, 0.8, 0.9, 0.95, 0.98, 0.99, 0.995, 1.0])
"""One prompt is taken from the middle of each of these parts of all prompts, the shortest first."""
COUNTS: Floats = np.array([1, 2, 3, 4, 6, 8, 12, 16, 24, 32, 64, 256, 4096], dtype=np.float64)
"""Replicas for which hits are worked out; a number between two is taken for the larger."""
_COUNTS = COUNTS.tolist()
AFFINE = ("prefix_affinity",)
"""Routers that bring a conversation back to its replica."""


@dataclass(frozen=True, slots=True)
class Chunks:
    """The steps in which a replica with some token budget computes prompts, one prompt after the other."""

    tokens: Longs
    pairs: Floats
    """Pairs of query and key that each step attends to."""
    share: Floats
    """Of all requests, that each step stands for."""
    first: Longs
    """Where the steps of each prompt begin."""
    prompt_share: Floats
    """Of all requests, that each prompt stands for."""

    def per_prompt(self, values: Floats) -> Floats:
        """Sums over the steps of each prompt."""
        return np.add.reduceat(values, self.first)

    @property
    def count(self) -> Floats:
        """Steps of each prompt."""
        return np.diff(np.append(self.first, len(self.tokens))).astype(np.float64)


@dataclass(frozen=True, slots=True)
class Prompts:
    """A few prompts that stand for all."""

    share: Floats
    """Of all requests, that each of them stands for; adds up to 1."""
    context_tokens: Floats
    nearest_tokens: Floats
    """Of each prompt, cached where its last turn was."""
    elsewhere_tokens: Floats
    """Of each prompt (row), cached on another replica, for each of ``COUNTS``."""
    _chunks: dict[tuple[int, int], Chunks] = field(default_factory=dict, compare=False)

    def chunks(self, budget_tokens: int, replica_count: float) -> Chunks:
        """The steps of these prompts where so many replicas share the requests."""
        column = min(bisect_left(_COUNTS, replica_count), len(_COUNTS) - 1)
        key = budget_tokens, column
        if key not in self._chunks:
            self._chunks[key] = self._cut(budget_tokens, column)
        return self._chunks[key]

    def _cut(self, budget_tokens: int, column: int) -> Chunks:
        met = 1.0 / COUNTS[column]
        share = np.concatenate([self.share * met, self.share * (1.0 - met)])
        context = np.concatenate([self.context_tokens, self.context_tokens])
        cached = np.concatenate([self.nearest_tokens, self.elsewhere_tokens[:, column]])
        asked = share > 0.0
        share, context, cached = share[asked], context[asked], cached[asked]
        fresh = np.maximum(1.0, np.floor(context - cached))
        counts = np.ceil(fresh / budget_tokens).astype(np.int64)
        first = np.cumsum(counts) - counts
        prompt = np.repeat(np.arange(len(counts)), counts)
        begun = (np.arange(len(prompt)) - first[prompt]) * float(budget_tokens)
        tokens = np.minimum(budget_tokens, fresh[prompt] - begun)
        before = np.maximum(0.0, context - fresh)[prompt] + begun
        return Chunks(
            tokens=tokens.astype(np.int64),
            pairs=tokens * before + tokens * (tokens + 1.0) / 2.0,
            share=share[prompt],
            first=first,
            prompt_share=share,
        )


def prompts_of(traffic: Traffic, *, caching: bool, affine: bool) -> Prompts:
    """The prompts of the peak window.

    Args:
        traffic: With a request in its window.
        caching: Whether prefixes are cached at all.
        affine: Whether the router brings conversations back to their replica.
    """
    trace = traffic.trace
    first, last = (int(row) for row in np.searchsorted(trace.arrival_s, list(traffic.window_s)))
    order = first + np.argsort(trace.input_tokens[first:last], kind="stable")
    middles = (_EDGES[:-1] + _EDGES[1:]) / 2.0
    rows = order[np.minimum((middles * len(order)).astype(np.int64), len(order) - 1)]
    context = trace.input_tokens[rows].astype(np.float64)
    nearest = np.zeros(len(rows))
    elsewhere = np.zeros((len(rows), len(COUNTS)))
    if caching:
        shared = workload.shared_input_tokens(trace).astype(np.float64)
        nearest = shared[rows]
        elsewhere = nearest[:, None] * np.ones(len(COUNTS)) if affine else _elsewhere(trace, rows, shared)
    return Prompts(np.diff(_EDGES), context, nearest, elsewhere)


def _elsewhere(trace: Trace, rows: Longs, shared: Floats) -> Floats:
    """Tokens of each row that a replica other than that of its last turn holds, by number of replicas.

    What it expects to find goes down its conversation turn by turn: the whole of what a turn shares with one chance in
    as many as there are replicas, else what the turn before it could expect.
    """
    unit = workload.units_of(trace)
    found = np.empty((len(rows), len(COUNTS)))
    for place, row in enumerate(rows):
        turns = np.flatnonzero(unit[: row + 1] == unit[row])
        everywhere = min(shared[turns[0]], shared[row])
        expected = np.full(len(COUNTS), everywhere)
        for turn in turns[1:]:
            met = np.minimum(expected, shared[turn])
            expected = np.maximum(everywhere, shared[turn] / COUNTS + (1.0 - 1.0 / COUNTS) * met)
        # The last turn's own chance is counted apart.
        found[place] = everywhere if len(turns) == 1 else np.maximum(everywhere, met)
    return np.minimum(found, shared[rows][:, None])
