"""Keys of a scenario about what happens around a fleet while traffic runs."""

from typing import Annotated, Literal

from pydantic import Field, model_validator

from tokenfleet.app.phase_types import PhaseSpec
from tokenfleet.app.scenario_words import Count, Duration, Fraction, Moment, Positive, Rate, Strict, Wait, problem
from tokenfleet.app.takes_types import TakesSpec, WindowSpec

EventKind = Literal["fail", "drain", "slow", "rollout"]


class EventSpec(Strict):
    """Something that becomes of replicas at a time."""

    at: Moment
    """After the start of the traffic; ``0s``: from the start on."""
    what: EventKind = "fail"
    """``fail``: gone at once, with every request they hold. ``drain``: they take no more and finish what they have.
    ``slow``: each of their steps takes ``factor`` times as long. ``rollout``: a new version takes the place of every
    replica, as ``rollout`` of the scenario says; its replicas are numbered behind the old ones."""
    replicas: Annotated[Count, Field(ge=1)] | Annotated[list[Annotated[int, Field(ge=0)]], Field(min_length=1)] = 1
    """How many, the first of the fleet; or their numbers, such as ``[2, 5]``, counted from 0 over all groups."""
    node: Annotated[int, Field(ge=0)] | None = None
    """Instead of ``replicas``: those on this node, counted from 0, zone by zone. Replicas are placed as a plan places
    them."""
    zone: str | None = None
    """Instead of ``replicas``: those in this one of the ``zones``."""
    back_after: Duration | None = None
    """When they serve again as before, with an empty cache after a failure; left out, never."""
    factor: Positive = 2.0
    """For ``slow``."""
    pool: str | None = None
    """In which pool, where the scenario has ``pools``; ``NAME-prefill`` or ``NAME-decode`` where they are apart."""

    to: PhaseSpec | None = None
    """For ``rollout``: what is different about the new version, such as ``{precision: fp8}``; left out, nothing is."""

    @model_validator(mode="after")
    def _one_thing_is_struck(self) -> "EventSpec":
        given = [key for key in ("replicas", "node", "zone") if key in self.model_fields_set]
        if len(given) > 1:
            raise problem(f"has {' and '.join(given)}", "name replicas, a node, or a zone")
        twice = next((number for number in self.numbers if self.numbers.count(number) > 1), None)
        if not isinstance(self.replicas, int) and twice is not None:
            raise problem(f"names replica {twice} twice", "leave one out")
        return self

    @property
    def place(self) -> str:
        """The node or zone that it strikes; empty where it strikes replicas."""
        if self.zone is not None:
            return f"zone {self.zone}, "
        return "" if self.node is None else f"node {self.node}, "

    @model_validator(mode="after")
    def _of_one_kind(self) -> "EventSpec":
        if self.what != "rollout" and self.to is not None:
            raise problem(f"{self.what} has to, which is of a rollout", "leave it out")
        given = {"replicas", "node", "zone", "back_after"} & self.model_fields_set
        if self.what == "rollout" and given:
            raise problem("a rollout takes every replica, for good", f"leave out {', '.join(sorted(given))}")
        if self.to is not None and self.to.replicas is not None:
            raise problem("to has replicas, and a new version has as many as the old one", "leave it out")
        if self.to is not None and (self.to.router or self.to.utilization_cap):
            raise problem("to says more than what a replica is, and both versions serve together", "leave it out")
        return self

    @property
    def numbers(self) -> tuple[int, ...]:
        """The replicas by number."""
        return tuple(range(self.replicas)) if isinstance(self.replicas, int) else tuple(self.replicas)


class ClientsSpec(Strict):
    """What clients do when they are refused, when the replica that served them fails, or when it takes too long."""

    attempts: Annotated[Count, Field(ge=1, le=1000)] = 3
    """Tries of one request in all."""
    backoff: Wait = 1.0
    """Wait before the second try; doubled before each further one, and drawn between half of it and all of it."""
    longest_backoff: Wait = 60.0
    """The wait grows no longer than this."""
    first_token_timeout: Wait | None = None
    """A client gives an attempt up when its first token has not come by then; left out, never."""
    timeout: Wait | None = None
    """The same for the last token. Each attempt is timed anew; when all are spent, it counts as an error."""
    reads: Rate | None = None
    """Tokens that a client reads in a second, such as ``15/s``; left out, as fast as they come. The engine does not
    wait for it; its connection lasts longer, and users send their next request when they have read the answer."""


class AdmissionSpec(Strict):
    """Who is turned away at the door, with a 503."""

    queue_limit: Annotated[Count, Field(ge=1)]
    """Requests waiting at a replica from which on it takes no more; when all are full, arrivals are refused."""
    deadline: Wait | None = None
    """Who has waited so long at a replica and is not admitted yet is refused; left out, nobody is."""
    retry_after: Wait | None = None
    """Told to those refused, who wait at least that long."""


class BatchSpec(Strict):
    """Offline work on the replicas that serve interactive requests: it runs in free slots, and gives way."""

    takes: TakesSpec
    """Which requests are batch."""
    window: WindowSpec | None = None
    """When they are sent; left out, at any time."""
    slots: Annotated[Fraction, Field(gt=0.0)] = 1.0
    """Share of a replica's sequence slots up to which batch is sent there."""
    kept: Annotated[int, Field(ge=0)] = 1
    """Batch requests that each replica gets while the window is open, however busy it is."""
    patience: Wait = 600.0
    """A batch request that has been at a replica for so long comes before whoever arrives later."""
    wait: Wait | None = None
    """How long an interactive request waits for a slot or KV memory before batch gives way; left out, it does at once.
    """


class UsersSpec(Strict):
    """A fixed number of users who wait for an answer before they send the next request."""

    count: Annotated[Count, Field(ge=1)]
    """Users; each takes the next conversation of the traffic when its last one has ended."""
    think: Wait | None = None
    """Mean time from an answer to the next request of the same user: reading, or a tool that runs."""
    ramp: Duration | None = None
    """Users start evenly over this time; left out, all at once."""
