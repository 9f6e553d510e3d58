"""The run record: what happened to each request, simulated or measured. Every metric is computed from it."""

from collections.abc import Mapping, Sequence
from dataclasses import field, fields, replace
from enum import IntEnum
from typing import Any, Protocol

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Bools, Floats, Ints, members

Counts = npt.NDArray[np.int64]
GAP_BINS_PER_OCTAVE = 32
"""Bins of the token gap histogram: 2.2 % wide."""


RECORD_COLUMNS = (
    "arrival_s",
    "first_token_s",
    "finish_s",
    "input_tokens",
    "output_tokens",
    "cached_tokens",
    "preemption_count",
    "replica",
    "status",
    "ready_s",
    "class_bits",
)
"""Fields of a run record with one entry per request."""


class Status(IntEnum):
    """How a request ended."""

    FINISHED = 0
    REJECTED_TOO_LONG = 1
    """Prompt plus output exceed the context limit, the whole KV pool or, where prompts are not cut, the step budget;
    refused on arrival."""
    REJECTED_QUEUE_FULL = 2
    """Every ready replica had its queue full, at the last attempt."""
    REJECTED_NOBODY_READY = 3
    """No replica was ready, at the last attempt."""
    LOST = 4
    """Its replica failed, at the last attempt."""
    REJECTED_BATCH_SHED = 5
    """The door let no batch in, at the last attempt."""
    REJECTED_QUOTA_SPENT = 6
    """Its tenant had too few tokens left, at the last attempt."""
    REJECTED_NEW_SESSION = 7
    """No new session was opened, at the last attempt."""
    REJECTED_CONTEXT_CAP = 8
    """Prompt and output limit were longer than the cap in force, at the last attempt."""
    REJECTED_OUTPUT_CAP = 9
    """The output limit was higher than the cap in force, at the last attempt."""
    CANCELLED = 10
    """Its user left before the last token. It is not tried again, and nobody failed."""
    TIMED_OUT = 11
    """Its client gave up waiting, at the last attempt."""
    REJECTED_DEADLINE = 12
    """It was not admitted by the deadline of the door, at the last attempt."""


NOT_TURNED_AWAY = (
    Status.FINISHED,
    Status.REJECTED_TOO_LONG,
    Status.LOST,
    Status.CANCELLED,
    Status.TIMED_OUT,
)
_TURNED_AWAY: Bools = np.array([status not in NOT_TURNED_AWAY for status in range(max(Status) + 1)])
"""Endings that are no refusal at the door: one that no replica could ever serve is an error of the request."""


class Degraded(IntEnum):
    """What was given up to answer a request."""

    NOTHING = 0
    SMALLER_MODEL = 1
    """The rung ``smaller_model`` sent its last attempt to the smaller model."""


@dataclass(frozen=True, slots=True, kw_only=True)
class GapHistogram:
    """Counts of token gaps (ITL: time between two tokens of one request).

    Bin ``i`` covers ``lower_s[i] <= gap < lower_s[i + 1]``; ``lower_s`` has one entry more than ``count``.
    """

    lower_s: Floats
    count: Counts


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkDone:
    """What replicas have done since the start, as counters that never fall; arrays have shape (sample, replica).

    Time is that in steps up to the sample; the counts are of all steps fixed by then.
    """

    busy_s: Floats
    step_count: Counts
    prefill_step_count: Counts
    """Steps with prefill in them."""
    prefill_tokens: Counts
    """Prompt tokens computed, those computed again after a preemption included."""
    decode_tokens: Counts
    """One for each decoding sequence and step; drafts that were kept are not among them."""
    context_tokens: Counts
    """Contexts that decoded tokens attended to, added up."""
    pair_count: Counts
    """Query-key pairs of prefill."""
    kept_draft_tokens: Counts
    """Drafted tokens that were kept, by all steps that have ended by then; none behind the last token of a request."""
    preemption_count: Counts
    swap_count: Counts
    """Those of them that moved the KV to host memory."""
    swapped_block_count: Counts
    """KV blocks moved there and back."""
    recomputed_tokens: Counts
    """Tokens computed again after preemptions, from the moment their requests were admitted again."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Telemetry:
    """Gauges sampled at equal times; arrays have shape (sample, replica)."""

    time_s: Floats
    running: Ints
    waiting: Ints
    kv_used_fraction: Floats
    active_tokens: Counts
    """Tokens of running sequences whose KV is computed, by all steps fixed up to then."""
    done: WorkDone
    state: npt.NDArray[np.int8] | None = None
    """What each replica was, a :class:`tokenfleet.domain.world.ReplicaState`; ``None``: ready all the time."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BusyTime:
    """What the replicas of a run spent their time on, in replica-seconds; shared steps are split additively.

    A step with prefill and decode is split by the mean of both orders: what a phase costs alone, and what it
    adds to the other; decode pays at least for what its sequences read. ``prefill_s`` includes ``cached_prefix_s``,
    the attention of new tokens to cached ones.
    """

    prefill_s: float
    decode_s: float
    cached_prefix_s: float
    step_count: int
    mixed_step_count: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ClassGaps:
    """Token gaps of some of the requests, of the whole run and of its peak window."""

    gaps: GapHistogram
    peak_gaps: GapHistogram | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Ledger:
    """What each request took of the gpus, an additive share of every step, and when its turn came.

    All requests together took what the replicas were busy. A request is charged for all its attempts, those lost
    with a replica included.
    """

    scheduled_s: Floats
    """When the scheduler first admitted it, at its last attempt: its wait in the queue is from ``ready_s`` to here."""
    prefill_gpu_s: Floats
    cached_gpu_s: Floats
    """The part of ``prefill_gpu_s`` that is attention to tokens from the prefix cache."""
    decode_gpu_s: Floats
    recomputed_tokens: Counts
    """Tokens computed again after preemptions, which neither host memory nor the prefix cache had kept."""
    swap_count: Ints
    """Preemptions that moved its KV to host memory."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """Something that became of replicas, and why."""

    time_s: float
    kind: str
    """Kind of a :class:`tokenfleet.domain.world.Happening`."""
    replicas: tuple[int, ...]
    """Those whose state it changed; of ``wait``, those that somebody waits for."""
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Spell:
    """What a replica was for a while."""

    replica: int
    state: int
    """A :class:`tokenfleet.domain.world.ReplicaState`."""
    start_s: float
    end_s: float
    """``inf``: it was so at the end of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Turmoil:
    """What a run with a :class:`tokenfleet.domain.world.World` tells besides."""

    attempt_count: Ints
    """Times each request was sent."""
    degraded: npt.NDArray[np.int8]
    """:class:`Degraded` of each request."""
    refused_count: int
    """Attempts turned away: for a full queue, because nobody was ready, by the door or at its deadline."""
    lost_count: int
    """Attempts lost with their replica."""
    cancelled_count: int
    """Attempts that their users left."""
    timed_out_count: int
    """Attempts that clients gave up."""
    wasted_output_tokens: int
    """Output tokens of all attempts that came to nothing, those of the steps in flight at their end included."""
    left_s: Floats
    """When each request ended, well or not."""
    partial_output_tokens: Ints
    """What the last attempt of each request had generated where it did not finish, so counted; 0 where it did."""
    state_s: Floats
    """Seconds that each replica spent in each :class:`tokenfleet.domain.world.ReplicaState`, up to the end of the
    run; shape (replica, state)."""
    spells: tuple[Spell, ...]
    """The same moment by moment; those of a replica follow each other without a gap."""
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class RunRecord:
    """One run. Columns have one entry per request, in the order of the trace; NaN where a thing never happened."""

    arrival_s: Floats
    """At the router, of the first attempt: what a user counts from."""
    first_token_s: Floats
    """Of the attempt that finished, like all that follows; where the client gave up its last one, of that, if it came
    before."""
    finish_s: Floats
    input_tokens: Ints
    output_tokens: Ints
    cached_tokens: Ints
    """Prompt tokens served from the prefix cache when the request was first admitted."""
    preemption_count: Ints
    replica: Ints
    """The one that the request was sent to last; -1 when its last attempt was turned away at the router."""
    status: npt.NDArray[np.int8]
    gaps: GapHistogram
    """Gaps of the whole run."""
    peak_gaps: GapHistogram | None
    """Gaps of steps that end inside the peak window, when one was given."""
    busy: BusyTime
    replica_count: int
    end_s: float
    telemetry: Telemetry | None
    turmoil: Turmoil | None = None
    """``None`` in a quiet world."""
    cut_s: float | None = None
    """Where the replay was stopped on purpose, before its end: what had not happened by then is NaN. ``None``: it ran
    to its end."""
    ready_s: Floats | None = None
    """When the front end handed each request to the scheduler; NaN where it was not served at its first attempt,
    ``None`` where nobody knows."""
    class_bits: Ints | None = None
    """Traffic classes of each request, as in the trace; ``None`` where nobody knows."""
    classes: tuple[str, ...] = ()
    time_of_day_s: float = 0.0
    """Time of day at second 0."""
    ledger: Ledger | None = None
    """Kept along with telemetry."""
    class_gaps: Mapping[str, ClassGaps] = field(default_factory=dict)
    """Gaps of each traffic class, and of each priority where there are several; kept along with telemetry."""

    def of_class(self, name: str | None) -> Bools:
        """Which requests are of a traffic class; of ``None`` all. Nobody, where the class is not known."""
        if name is None:
            return np.ones(len(self.arrival_s), dtype=np.bool_)
        return members(self.class_bits, self.classes, name, len(self.arrival_s))

    @property
    def span_s(self) -> float:
        """From the first arrival to the end of the run; 0 where nothing ended."""
        return max(self.end_s - float(self.arrival_s[0]), 0.0) if len(self.arrival_s) else 0.0

    @property
    def turned_away(self) -> Bools:
        """Requests that somebody sent away, whatever the reason."""
        return _TURNED_AWAY[self.status]

    @property
    def ttft_s(self) -> Floats:
        """Time to first token of each request."""
        return self.first_token_s - self.arrival_s

    @property
    def e2e_s(self) -> Floats:
        """Time to last token of each request."""
        return self.finish_s - self.arrival_s

    @property
    def tpot_s(self) -> Floats:
        """Mean time per output token after the first; NaN for fewer than two tokens."""
        later = np.where(self.output_tokens > 1, self.output_tokens - 1, np.nan)
        return (self.finish_s - self.first_token_s) / later


class Onlooker(Protocol):
    """Looks at a replay on the way, and may stop it."""

    def looks_s(self, last_s: float) -> Sequence[float]:
        """When to be asked, in order.

        Args:
            last_s: The last arrival; nobody is asked from then on.
        """

    def __call__(self, so_far: RunRecord) -> bool:
        """Whether to stop.

        Args:
            so_far: What had happened at ``cut_s``, without cached tokens, preemptions and busy time.
        """


def requests_of(record: RunRecord, chosen: Bools | Ints | Counts) -> RunRecord:
    """The record of some of its requests; gaps and gauges stay those of all."""
    columns: dict[str, Any] = {name: getattr(record, name) for name in RECORD_COLUMNS}
    kept: dict[str, Any] = {name: column[chosen] for name, column in columns.items() if column is not None}
    return replace(
        record,
        ledger=None if record.ledger is None else entries_of(record.ledger, chosen),
        turmoil=None if record.turmoil is None else _turmoil_of(record.turmoil, chosen),
        **kept,
    )


def _turmoil_of(turmoil: Turmoil, chosen: Bools | Ints | Counts) -> Turmoil:
    """What happened to some requests; counts and replicas stay those of all."""
    names = ("attempt_count", "degraded", "left_s", "partial_output_tokens")
    return replace(turmoil, **{name: getattr(turmoil, name)[chosen] for name in names})


def entries_of(ledger: Ledger, rows: npt.NDArray[np.integer] | Bools) -> Ledger:
    """The ledger of some requests, in the order asked for."""
    return Ledger(**{field.name: getattr(ledger, field.name)[rows] for field in fields(ledger)})
