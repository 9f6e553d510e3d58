"""What happens around a fleet while it serves: failures, starts, clients that come back, admission, scaling."""

from collections.abc import Callable, Mapping, Sequence
from enum import IntEnum
from typing import Final, Literal

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import DAY_S
from tokenfleet.domain.trace import Bools, Floats, Ints

HappeningKind = Literal["start", "ready", "drain", "stop", "fail", "back", "slow", "door", "wait"]

NO_CAP = 2**31 - 1
"""Stands for a limit that is not in force."""


class ReplicaState(IntEnum):
    """What a replica is at a moment. Only a ready one takes requests; absent and failed ones hold no gpus."""

    ABSENT = 0
    STARTING = 1
    READY = 2
    DRAINING = 3
    """It finishes what it has, and stays."""
    STOPPING = 4
    """It finishes what it has, and goes."""
    FAILED = 5


HOLDS_GPUS: Final = (ReplicaState.STARTING, ReplicaState.READY, ReplicaState.DRAINING, ReplicaState.STOPPING)
BECOMES: Mapping[HappeningKind, Mapping[ReplicaState, ReplicaState]] = {
    "start": {ReplicaState.ABSENT: ReplicaState.STARTING, ReplicaState.FAILED: ReplicaState.STARTING},
    "ready": {state: ReplicaState.READY for state in ReplicaState if state != ReplicaState.READY},
    "drain": {ReplicaState.READY: ReplicaState.DRAINING},
    "stop": {
        ReplicaState.STARTING: ReplicaState.ABSENT,
        ReplicaState.READY: ReplicaState.STOPPING,
        ReplicaState.DRAINING: ReplicaState.STOPPING,
        ReplicaState.FAILED: ReplicaState.ABSENT,
    },
    "fail": {
        ReplicaState.STARTING: ReplicaState.FAILED,
        ReplicaState.READY: ReplicaState.FAILED,
        ReplicaState.DRAINING: ReplicaState.FAILED,
        ReplicaState.STOPPING: ReplicaState.FAILED,
    },
    "back": {ReplicaState.DRAINING: ReplicaState.READY, ReplicaState.FAILED: ReplicaState.READY},
    "slow": {},
    "door": {},
    "wait": {},
}
"""What a happening makes of a replica, by what it was; what is not named stays as it is."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Door:
    """What a request must keep within to be let in. The default lets everybody in."""

    batch_is_open: bool = True
    """Whether batch requests are let in."""
    quota_tokens_per_s: int = NO_CAP
    """Tokens of each tenant and second, prompts and output limits together. Requests without a tenant have no quota."""
    quota_burst_tokens: int = NO_CAP
    """What a tenant may save up; it starts full whenever the quota changes."""
    session_limit_count: int = NO_CAP
    """Open sessions from which on no new one is opened; a request without a session is one of its own."""
    smaller_input_tokens: int = 0
    """Prompts up to this long go to the smaller model, batch aside; 0: none does."""
    smaller_output_tokens: int = NO_CAP
    """Of those, the ones whose output limit is not above this."""
    context_cap_tokens: int = NO_CAP
    """Longest prompt and output limit together. Who declares more is refused; nobody is cut."""
    output_cap_tokens: int = NO_CAP
    """Highest output limit."""
    wait_cap_s: float | None = None
    """How long who comes now may wait to be admitted by its replica, where that is less than the ``deadline_s`` of the
    admission; ``None``: no less."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that becomes of replicas at a moment.

    ``start``: they hold their gpus and load. ``ready``: they take requests from now on, with an empty cache unless
    they were draining or stopping. ``drain``: they take no more and finish what they have. ``stop``: they do so and
    are gone once they are empty. ``fail``: they are gone at once, with every request they hold and their cache.
    ``back``: those that drain or have failed take requests again; who has been given back meanwhile stays away.
    ``slow``: each of their steps takes ``step_time_factor`` times as long from the next one on; 1 ends it, and so
    does a new start. ``door``: from now on requests are let in by ``door``; no replica is meant. ``wait``: somebody
    waits for these replicas, which changes nothing and stands in the log of decisions. What makes no sense in the
    state a replica is in, such as ``drain`` where it has failed, changes nothing.
    """

    time_s: float
    kind: HappeningKind
    replicas: tuple[int, ...]
    """Numbers of replicas, counted over all groups in order."""
    step_time_factor: float = 1.0
    door: Door | None = None
    reason: str = ""
    """For the decision log: what a person reads."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Clients:
    """What clients do about a refusal, a lost request, or a long wait."""

    attempt_count: int = 1
    """Tries of one request in all; 1: nobody comes back."""
    backoff_s: float = 1.0
    """Wait before the second try; doubled before each further one, and drawn between half of it and all of it."""
    longest_backoff_s: float = 60.0
    first_token_timeout_s: float | None = None
    """An attempt is given up when its first token has not come by then; ``None``: never."""
    timeout_s: float | None = None
    """The same for the last token. Each attempt is timed from its own start."""
    read_tokens_per_s: float | None = None
    """Tokens that a client reads in a second, from the first one on; ``None``: as fast as they come. No engine waits
    for it. Its user does: what follows is sent, and the session is idle, when the answer has been read."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Leaving:
    """Users who leave before their answer is complete, as a log or a study of them knows. They do not come back."""

    after_tokens: Ints | None = None
    """Output tokens with which each user leaves; 0, or all there are: stays."""
    after_s: Floats | None = None
    """Seconds after an attempt was sent at which its user leaves; ``inf``: stays."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Who is turned away at the door, with a 503."""

    queue_limit_count: int | None = None
    """Requests waiting at a replica from which on it takes no more. The router then tries the next best; when all
    ready replicas are full, the arrival is refused."""
    deadline_s: float | None = None
    """An attempt that has waited so long at a replica is refused, unless it was admitted by then or came with the KV of
    its prompt. ``None``: it may wait for ever."""
    retry_after_s: float = 0.0
    """Told to those refused; they wait at least that long before they try again."""
    session_idle_s: float = 300.0
    """A session stays open until so long after the last of its requests in flight has ended. The door cannot know
    whether another turn will come."""


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchLane:
    """Offline work on the replicas that serve interactive requests, in what they leave over.

    It waits at the gateway, runs in free slots, and gives way. Interactive requests wait in the queues of the replicas
    as ever, and come before batch there.
    """

    opens_s: float = 0.0
    """When the daily window opens in which batch is sent, seconds on the clock of the trace."""
    open_for_s: float = 86_400.0
    """How long it stays open; a day: always. What has been sent by then goes on, and gives way."""
    slot_fraction: float = 1.0
    """Share of the sequence slots of a replica up to which batch is sent there."""
    kept_count: int = 1
    """Batch requests that each replica gets while the window is open, however busy it is: the lane goes on."""
    patience_s: float = 600.0
    """A batch request that has been at a replica for so long comes before whoever arrives later, and gives way to
    nobody of them: no request starves."""
    wait_s: float = 0.0
    """An interactive request that finds no slot or no KV memory waits so long before batch requests give way."""

    @property
    def is_windowed(self) -> bool:
        """Whether it is ever closed."""
        return self.open_for_s < DAY_S


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Requests that are sent because an earlier one has ended, well or not."""

    after: Ints
    """Number of the request whose end each one waits for, below its own; ``BY_CLOCK`` (-1): it arrives at its time in
    the trace; ``NEXT_IN_LINE`` (-2): it is sent by whichever user is free first, which is when a request ends for
    whose end no other one waits."""
    delay_s: Floats
    """Think or tool time between that end and this arrival, a picosecond at least; of no meaning by the clock."""
    end_count: Ints | None = None
    """Ends that each one waits for: that of ``after``, and of so many requests right before it less one; the last of
    them counts. ``None``: one."""
    only_after_success: Bools | None = None
    """Which requests are never sent where what they wait for comes to nothing: no attempt, and ``CANCELLED``. They end
    at that moment, not well, for those who wait for them. ``None``: all are sent."""
    marks: Bools | None = None
    """Which ones are no requests but marks on the way of others: nothing is sent, they end when they would come, well
    unless what they wait for came to nothing and they are among ``only_after_success``; no attempt, and ``CANCELLED``.
    ``None``: none is."""
    unread: Bools | None = None
    """Answers that nobody reads, however slowly clients do: what follows comes at their end. ``None``: none is."""
    at_once: bool = False
    """Without a delay a request comes at the very moment of that end, not a picosecond later."""


BY_CLOCK = -1
NEXT_IN_LINE = -2


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """All that a controller may know at a tick. Arrays have one entry per replica, as the last scrape saw it.

    Replicas of the smaller model are not shown, and what went there is not counted.
    """

    time_s: float
    state: npt.NDArray[np.int8]
    """:class:`ReplicaState` of each replica."""
    running: Ints
    waiting: Ints
    kv_used_fraction: Floats
    free_kv_tokens: Ints
    """Tokens for which KV memory is free."""
    arrived_count: int
    """Requests that reached the router since the last tick, second tries included."""
    refused_count: int
    """Of those, turned away."""
    ttft_p90_s: float | None
    """Of first tokens since the last tick; ``None`` without any."""
    first_tokens: Ints
    """The requests, by their place in the trace, of which these first tokens are."""
    first_token_s: Floats
    """When each of them left."""
    active_tokens: Ints | None = None
    """Tokens of running requests, prompts and outputs, those that several share counted for each of them; ``None``
    where the world does not look inside."""
    oldest_wait_s: Mapping[int, Floats] | None = None
    """How long the request that has waited for longest has waited, by priority and replica, 0 where nobody waits; a
    priority of whom nobody waits at all is left out. Who was preempted is not counted, for it has been admitted.
    ``None`` where the world does not look inside."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A fleet's surroundings. The default is a quiet one: all replicas ready, nobody fails, nobody comes back.

    An arrival that finds no replica ready is refused, as a gateway without a healthy backend does.
    """

    happenings: tuple[Happening, ...] = ()
    """In order of time."""
    absent: tuple[int, ...] = ()
    """Replicas that are not ready at second 0."""
    clients: Clients = Clients()
    admission: Admission = Admission()
    door: Door = Door()
    """At second 0; a happening may change it."""
    batch: npt.NDArray[np.bool_] | None = None
    """Which requests are batch, one entry per request; ``None``: none is."""
    lane: BatchLane | None = None
    """How they are served; ``None``: like all others."""
    closed_loop: ClosedLoop | None = None
    leaving: Leaving | None = None
    """Users who leave early, one entry per request; ``None``: all stay."""
    controller: Callable[[FleetView], Sequence[Happening]] | None = None
    """Asked at each tick; what it answers may lie at the tick or later."""
    tick_s: float = 15.0
    """Time between two scrapes, and between two questions to the controller."""
    caps_waits: bool = False
    """Whether the controller may answer with a door that has a ``wait_cap_s``. Each request then has an alarm, which
    takes time."""
    looks_inside: bool = False
    """Whether the controller is shown active tokens and waits, too. The replay then keeps its ledger, which takes
    time."""
    calls: Ints | None = None
    """Number of the pool that each request calls, one entry per request; ``None``: the first one."""
