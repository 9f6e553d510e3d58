"""What happens around a fleet while it serves: failures, starts, clients that come back, admission, scaling."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Literal

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.trace import Floats, Ints

HappeningKind = Literal["ready", "drain", "stop", "fail", "slow"]


@dataclass(frozen=True, slots=True, kw_only=True)
class Happening:
    """Something that becomes of replicas at a moment.

    ``ready``: they take requests from now on. ``drain``: they take no more and finish what they have. ``stop``: they
    are gone once they are empty. ``fail``: they are gone at once, with every request they hold and their cache.
    ``slow``: each of their steps takes ``step_time_factor`` times as long from now on; 1 ends it.
    """

    time_s: float
    kind: HappeningKind
    replicas: tuple[int, ...]
    """Numbers of replicas, counted over all groups in order."""
    step_time_factor: float = 1.0
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
    timeout_s: float | None = None
    """They give up an attempt whose first token has not come by then; ``None``: they wait for ever."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Admission:
    """Who is turned away at the door, with a 503."""

    queue_limit_count: int | None = None
    """Requests waiting per ready replica from which on arrivals are refused."""
    retry_after_s: float = 0.0
    """Told to those refused; they wait at least that long."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedLoop:
    """Requests that are sent because an earlier one has ended."""

    after: Ints
    """Number of the request whose end each one waits for, below its own; -1: it arrives by the clock."""
    delay_s: Floats
    """Think or tool time between that end and this arrival; of no meaning where ``after`` is -1."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetView:
    """All that a controller may know at a tick. Arrays have one entry per replica, as the last scrape saw it."""

    time_s: float
    state: npt.NDArray[np.int8]
    """:class:`ReplicaState` of each replica."""
    running: Ints
    waiting: Ints
    kv_used_fraction: Floats
    arrived_count: int
    """Requests that reached the router since the last tick, second tries included."""
    refused_count: int
    """Of those, turned away."""
    ttft_p90_s: float | None
    """Of first tokens since the last tick; ``None`` without any."""


@dataclass(frozen=True, slots=True, kw_only=True)
class World:
    """A fleet's surroundings. The default is a quiet one: all replicas ready, nobody fails, nobody comes back."""

    happenings: tuple[Happening, ...] = ()
    """In order of time."""
    absent: tuple[int, ...] = ()
    """Replicas that are not ready at second 0."""
    clients: Clients = Clients()
    admission: Admission = Admission()
    closed_loop: ClosedLoop | None = None
    controller: Callable[[FleetView], Sequence[Happening]] | None = None
    """Asked at each tick; what it answers may lie at the tick or later."""
    tick_s: float = 15.0
    """Time between two scrapes, and between two questions to the controller."""
