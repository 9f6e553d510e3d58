"""The way of requests through several pools: prefill and decode apart, chains, several models side by side."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import field
from typing import Literal

from tokenfleet.domain.fleet import Fleet
from tokenfleet.domain.gpu import Link
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.run import ClassGaps, Decision, GapHistogram, RunRecord
from tokenfleet.domain.trace import Bools, Floats, Ints, Trace
from tokenfleet.domain.world import Clients, Door, FleetView, Happening


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """A part of a request's way. Columns have one entry per request."""

    takes: Bools
    """Requests that take it; the others pass by. What other columns hold for those is of no concern."""
    answer: str | None = None
    """The answer that it is a part of; ``None``: of all of them. Whoever a gate sends to another one passes by."""
    instead: Bools | None = None
    """Who takes it of those that a gate has sent to this answer; ``None``: nobody."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Call(Part):
    """Requests are served by a pool, and go on when it has answered."""

    pool: str
    """Each pool is called by one stage: requests that came back to it would not feed forward."""
    input_tokens: Ints
    output_tokens: Ints
    call_count: int = 1
    """Equal calls side by side, such as one per document to rerank; the last to end counts."""
    kv_delivered: bool = False
    """The KV of the prompt comes along, see :class:`tokenfleet.domain.trace.Trace`."""
    shares_prefixes: bool = False
    """The prompt begins as the trace says, so a prefix cache can find it."""
    is_announced: bool = False
    """The pool has known of the request from the start, so its front end (``request_ps``) adds nothing."""
    is_seen: bool = True
    """Its tokens are what the user reads; else only its end counts."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Wait(Part):
    """Something outside the fleets that takes its time and has room for everybody, such as a search."""

    duration_s: Floats


@dataclass(frozen=True, slots=True, kw_only=True)
class Hold(Part):
    """Requests wait for the next opening of a daily window, unless it is open: work that may run at night only."""

    opens_s: float
    """Time of day."""
    closes_s: float
    """Time of day; before ``opens_s`` where the window spans midnight."""
    start_s: float = 0.0
    """Time of day at second 0 of the trace."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Transfer(Part):
    """KV goes from the replica of the last call to the next pool: one request after the other on the replica's link."""

    duration_s: Floats
    """With the link to itself."""
    latency_s: float
    """On top, and in nobody's way."""
    link: str = ""
    """Its name, for people."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Handover:
    """How the KV of a prompt, and its first token, get from a pool that prefills to one that decodes."""

    link: Link
    first_token: Literal["prefill", "decode"] = "decode"
    """Whose first token the user gets. ``prefill`` (SGLang, TensorRT-LLM): it travels with the KV, and the decode pool,
    which has had the request from the start, yields the second on. ``decode`` (vLLM): it is thrown away, and the decode
    pool, to which a proxy sends the request then, yields every token."""
    overlapped_layer_count: int | None = None
    """Layers that are sent one by one while prefill computes; ``None``: all of them at its end."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Gate(Part):
    """A door in front of pools, moved by a controller that sees how full they are.

    A request is known by the lengths in the trace. Whoever is let in is in a session until its end, wherever that is;
    whoever is refused comes back as its client does.
    """

    name: str
    watched: tuple[str, ...]
    """Pools behind it: the controller is shown their replicas side by side, and the first tokens of theirs that users
    see, TTFT counted from the first arrival at the gate."""
    controllers: Callable[[], Callable[[FleetView], Sequence[Happening]]]
    """Somebody new to watch a replay; asked every ``tick_s`` for other doors."""
    tick_s: float = 15.0
    door: Door = field(default_factory=Door)
    """At second 0."""
    batch: Bools | None = None
    """Which requests are batch; ``None``: none is."""
    smaller: Bools | None = None
    """Which requests a smaller model may answer, where the door says so; ``None``: none."""
    smaller_answer: str = ""
    """The answer that it gives: that of parts behind the gate."""
    clients: Clients = field(default_factory=Clients)
    retry_after_s: float = 0.0
    session_idle_s: float = 300.0


Stage = Call | Wait | Hold | Transfer | Gate


@dataclass(frozen=True, slots=True, kw_only=True)
class GateRun:
    """What one gate did."""

    name: str
    attempt_count: Ints
    """Times each request came to it; 0 where it never did."""
    refused_count: int
    """Attempts turned away."""
    decisions: tuple[Decision, ...]
    """What became of its door."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PoolRun:
    """What one pool made of the calls to it."""

    trace: Trace
    """The calls in order of arrival."""
    record: RunRecord
    caller: Ints
    """Number of the request behind each call."""
    gaps: GapHistogram | None
    """What users see of it: its own gaps, and those that end with its first tokens after the last of another pool;
    ``None`` where nobody sees its tokens."""
    peak_gaps: GapHistogram | None
    """Those of them that end in the peak window."""
    class_gaps: Mapping[str, ClassGaps] = field(default_factory=dict)
    """The same of each traffic class and priority; kept along with telemetry."""


@dataclass(frozen=True, slots=True, kw_only=True)
class StagedRun:
    """A run through several pools."""

    record: RunRecord
    """The requests as their users see them. Gaps are those of the pools whose tokens are seen, and those between such
    calls; busy time and replicas are those of all pools, replicas counted over them in order."""
    pools: Mapping[str, PoolRun]
    """In the order of the stages."""
    transfer_s: Floats
    """Time each request spent in transfers, those before it on the link included; 0 without any."""
    gates: tuple[GateRun, ...] = ()
    """In the order of the stages."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Pools:
    """A system of pools: fleets by name, in any order."""

    fleets: Mapping[str, Fleet]
    stages: tuple[Stage, ...]
    """In the order in which requests take them; no request takes two at once."""

    @property
    def shares_gpus(self) -> bool:
        """Whether any replicas stand on gpus that others may stand on, too."""
        return any(group.berth is not None for fleet in self.fleets.values() for group in fleet.groups)

    @property
    def gpu_count(self) -> int:
        """GPUs of all pools, those that several stand on counted once."""
        return Fleet(groups=tuple(group for fleet in self.fleets.values() for group in fleet.groups)).gpu_count
