"""Requests as columns: what arrived, when, how long."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass

Floats = npt.NDArray[np.float64]
Ints = npt.NDArray[np.int32]
Bools = npt.NDArray[np.bool_]


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixTree:
    """Token sequences that requests share, as a tree of runs.

    Node ``i`` stands for ``token_count[i]`` tokens that follow the path of ``parent[i]`` (-1 at a root; a parent
    comes before its children). A request names the deepest node on its own sequence of prompt *and* output
    tokens: what lies beyond that path is its own alone.
    """

    parent: Ints
    token_count: Ints

    @property
    def depth_tokens(self) -> npt.NDArray[np.int64]:
        """Tokens on the path from the root to each node, the node included."""
        depth = self.token_count.astype(np.int64)
        above = self.parent.astype(np.int64)
        # Each round doubles how far up a node has looked, so long conversations cost few rounds.
        while (climbing := np.flatnonzero(above >= 0)).size:
            reached = above[climbing]
            depth[climbing] += depth[reached]
            above[climbing] = above[reached]
        return depth


@dataclass(frozen=True, slots=True, kw_only=True)
class Observed:
    """What a log says happened to each request. Descriptions use it; a replay never does. -1 and NaN are unknown."""

    model: Ints | None = None
    """Index into ``models``."""
    models: tuple[str, ...] = ()
    label: Ints | None = None
    """Task, tier or log type: index into ``labels``."""
    labels: tuple[str, ...] = ()
    cached_input_tokens: Ints | None = None
    """Part of the input that a prefix cache served."""
    reasoning_tokens: Ints | None = None
    """Part of the output that the user does not see."""
    ttft_s: Floats | None = None
    e2e_s: Floats | None = None
    streamed: Ints | None = None
    """1 streamed, 0 not."""
    finish: Ints | None = None
    """Why it ended: index into ``finishes``."""
    finishes: tuple[str, ...] = ()
    status: Ints | None = None
    """Index into ``statuses``."""
    statuses: tuple[str, ...] = ("ok", "error", "rejected", "cancelled")


@dataclass(frozen=True, slots=True, kw_only=True)
class Trace:
    """Requests in order of arrival. All columns have one entry per request; every length is known and positive."""

    arrival_s: Floats
    """Seconds since the start of the trace, not falling."""
    input_tokens: Ints
    """Prompt tokens, those a cache may serve included."""
    output_tokens: Ints
    """Generated tokens, reasoning included; 0 for prefill-only requests (embedding, rerank)."""
    prefix_node: Ints | None = None
    """Deepest shared node of each request in ``prefixes``, -1 for none."""
    prefixes: PrefixTree | None = None
    session: Ints | None = None
    """Conversation or agent run a request belongs to, -1 for none."""
    kv_delivered: Bools | None = None
    """Requests that bring the KV of their prompt along, computed elsewhere: all but that of its last token."""
    tenant: Ints | None = None
    """Index into ``tenants``, -1 for unknown."""
    tenants: tuple[str, ...] = ()
    priority: Ints | None = None
    """Smaller is served first, where an engine schedules by priority."""
    class_bits: Ints | None = None
    """Traffic classes of each request: bit ``i`` is set for one of ``classes[i]``; a request may be of several."""
    classes: tuple[str, ...] = ()
    start_utc: str | None = None
    """ISO 8601 time of second 0, when the source knows it."""
    time_of_day_s: float = 0.0
    """Time of day at second 0, by which daily deadlines count; midnight where nobody says."""
    observed: Observed | None = None

    @property
    def request_count(self) -> int:
        """Number of requests."""
        return len(self.arrival_s)

    @property
    def duration_s(self) -> float:
        """From second 0 to the last arrival."""
        return float(self.arrival_s[-1]) if len(self.arrival_s) else 0.0


COLUMNS = (
    "arrival_s",
    "input_tokens",
    "output_tokens",
    "prefix_node",
    "session",
    "kv_delivered",
    "tenant",
    "priority",
    "class_bits",
)
"""Fields of a trace with one entry per request."""


def rows_of(trace: Trace, rows: slice | npt.NDArray[np.integer] | Bools) -> Trace:
    """Some requests of a trace, in the order asked for, with its clock and its prefix tree.

    What the log says happened to them is left behind; their labels and models, which say what they are, are not.
    """
    known: dict[str, Any] = {name: getattr(trace, name) for name in COLUMNS}
    chosen = {name: column[rows] for name, column in known.items() if column is not None}
    return replace(trace, observed=_kinds_of(trace.observed, rows), **chosen)


def _kinds_of(seen: Observed | None, rows: slice | npt.NDArray[np.integer] | Bools) -> Observed | None:
    """What a log says of what some requests are; ``None`` where it says nothing."""
    if seen is None or (seen.model is None and seen.label is None):
        return None
    return Observed(
        model=None if seen.model is None else seen.model[rows],
        models=seen.models,
        label=None if seen.label is None else seen.label[rows],
        labels=seen.labels,
    )


def members(class_bits: Ints | None, classes: tuple[str, ...], name: str, count: int) -> Bools:
    """Which of ``count`` requests are of the class ``name``: nobody, where it is not known."""
    if class_bits is None or name not in classes:
        return np.zeros(count, dtype=np.bool_)
    found: Bools = (class_bits >> classes.index(name) & 1).astype(np.bool_)
    return found


def of_class(trace: Trace, name: str | None) -> Bools:
    """Which requests of a trace are of a traffic class; of ``None`` all."""
    if name is None:
        return np.ones(trace.request_count, dtype=np.bool_)
    return members(trace.class_bits, trace.classes, name, trace.request_count)


@dataclass(frozen=True, slots=True, kw_only=True)
class Reject:
    """A row that was left out, so that a person can look at it."""

    where: str
    """``FILE:LINE``; the first line is 1, a table's header included. In a list, the place of the entry."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Quality:
    """What reading did to the rows: ``rows_read`` = ``rows_kept`` + all of ``rows_dropped``."""

    rows_read: int
    rows_kept: int
    rows_dropped: dict[str, int]
    detected: dict[str, str]
    """format, time unit, zone, whether cached tokens are inside input..."""
    warnings: tuple[str, ...]
    rejects: tuple[Reject, ...] = ()
    """Rows left out one by one, the first 10,000; ``rows_dropped`` counts them all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthCounts:
    """How many requests had each length, exactly: what quantiles and merging need."""

    values: npt.NDArray[np.int64]
    """Lengths in tokens that occur, rising."""
    counts: npt.NDArray[np.int64]


@dataclass(frozen=True, slots=True, kw_only=True)
class SessionShape:
    """How requests follow each other in sessions: counts on fixed bins, enough to draw sessions like them.

    ``input`` bins are those of the length tables; a growth is a bin of its size with the sign of its direction; bin
    ``b`` of a pause holds ``2 ** (b / 8)`` to ``2 ** ((b + 1) / 8)`` milliseconds.
    """

    request_count: int
    """Requests in sessions."""
    labelled: bool
    """Whether the source names sessions; else they were told from prompts that continue one another."""
    turns: LengthCounts
    """Sessions by number of requests."""
    opening_input_bins: LengthCounts
    """First requests of sessions by input bin."""
    alone_input_bins: LengthCounts
    """Requests outside sessions by input bin."""
    steps: LengthCounts
    """Later requests by input bin of the request before, times 1,000, plus the growth bin, plus 500."""
    pause_bins: LengthCounts
    """Later requests by the time since the arrival of the one before."""
    growth_output_correlation: float
    """Rank correlation between how much a prompt grows and how long the answer before it was."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PromptShape:
    """What prompts share: what sessions and lone requests have in common, and what a session repeats of itself."""

    unit_count: int
    """Sessions and lone requests together."""
    shared_tokens: npt.NDArray[np.int64]
    """Lengths of common beginnings, such as system prompts."""
    shared_texts: npt.NDArray[np.int64]
    """How many texts of each length there are."""
    shared_units: npt.NDArray[np.int64]
    """How many units begin with one of them."""
    repeated_percents: LengthCounts
    """Later requests of sessions by the share, in percent, of what came before that their prompt repeats."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClientShape:
    """How one tenant sends: its load over time, how its requests bunch, and how long they are."""

    name: str
    request_count: int
    gap_cv: float
    """Standard deviation over mean of its own gaps; NaN when unknown."""
    weibull: bool
    """Whether its gaps look more like Weibull than gamma ones."""
    window_requests: npt.NDArray[np.int64]
    """Requests in each ten minutes from second 0."""
    cells: LengthCounts
    """Requests by cell of the joint length table: input bin times number of output bins, plus output bin."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LengthSummary:
    """Quantiles of a length in tokens."""

    p50: float
    p90: float
    p95: float
    p99: float
    max: float
    mean: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Workload:
    """A profile: what a trace looks like, enough to describe it and to draw one like it."""

    request_count: int
    duration_s: float
    mean_rate_per_s: float
    peak_minute_rate_per_s: float
    """Requests per second, averaged over the whole minute with the most requests."""
    peak_minute_start_s: float
    """Start of the minute with the most input plus output tokens."""
    peak_to_mean_minute_requests: float
    """Busiest whole minute over the mean whole minute, counted from second 0."""
    peak_to_mean_minute_tokens: float
    """The same for input plus output tokens."""
    interarrival_cv: float
    """Standard deviation over mean of the gaps between arrivals; NaN when there are fewer than two gaps."""
    input_tokens: LengthSummary
    output_tokens: LengthSummary
    joint_counts: npt.NDArray[np.int64]
    """Requests by (input, output) length; rows follow ``input_edges``, columns ``output_edges``."""
    input_edges: Floats
    output_edges: Floats
    minute_requests: npt.NDArray[np.int64]
    minute_input_tokens: npt.NDArray[np.int64]
    minute_output_tokens: npt.NDArray[np.int64]
    shareable_input_fraction: float | None
    """Share of input tokens that an endless prefix cache would serve; ``None`` when the source has no prefixes."""
    session_count: int | None
    tenant_request_counts: dict[str, int]
    quality: Quality
    extra: dict[str, Any]
    input_counts: LengthCounts | None = None
    output_counts: LengthCounts | None = None
    sessions: SessionShape | None = None
    prompts: PromptShape | None = None
    clients: tuple[ClientShape, ...] = ()
    """The largest tenants; the others send the rest together."""
