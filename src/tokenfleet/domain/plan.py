"""A plan: the question, the answer, and why."""

from dataclasses import field
from typing import Literal

from tokenfleet.domain.alternatives import Alternatives
from tokenfleet.domain.apart import ApartAnswer, ApartQuestion
from tokenfleet.domain.buying import Buying, Purchase
from tokenfleet.domain.fleet import Fleet, Router
from tokenfleet.domain.gpu import GpuPrice
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.obtainable import Obtainable
from tokenfleet.domain.outlook import Confidence, CurvePoint, FrontierPoint, SensitivityCase
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.rough import Rough
from tokenfleet.domain.run import RunRecord
from tokenfleet.domain.slo import Slo, SloResult
from tokenfleet.domain.stages import Handover
from tokenfleet.domain.survival import LossCase, Placement, Redundancy, Rollout
from tokenfleet.domain.ways import RouterTrial, SplitBy, Takes
from tokenfleet.domain.world import Admission, Clients

Limit = Literal[
    "prefill_compute",
    "decode_bandwidth",
    "kv_memory",
    "sequence_slots",
    "communication",
    "overhead",
    "single_request",
    "utilization_cap",
]
"""What stops a replica from taking more load; ``utilization_cap``: somebody who wants it no fuller."""


Does = Literal["answers", "prefills", "decodes", "reads", "sees"]
"""What a pool of a plan does: ``reads`` embeds or ranks, ``sees`` runs an image tower."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """Why a candidate, or every candidate, is out."""

    kind: Literal[
        "memory",
        "ttft_floor",
        "itl_floor",
        "e2e_floor",
        "context",
        "capacity",
        "unsupported",
        "price_missing",
        "no_samples",
        "contradiction",
        "redundancy",
    ]
    """``no_samples``: the promise is about something that no request of the trace does. ``contradiction``: clauses of
    the promise do not fit each other; a warning, as a fleet may keep all of them by being faster than they ask."""
    text: str
    """For a person, with numbers and units."""
    relax: str = ""
    """The smallest change that helps, when one is known."""
    clause: str = ""
    """Name of the clause whose floor breaks it; empty where it is about none."""


@dataclass(frozen=True, slots=True, kw_only=True)
class LimitUse:
    """One resource at the peak: used against available, and the load at which it would run out."""

    limit: Limit
    used_fraction: float
    """Share of the resource in use during the peak window, replicas as planned minus the spare."""
    rate_at_limit_per_s: float
    """Requests per second of the fleet at which this limit would bind, replicas as planned minus the spare,
    once every limit listed before it is lifted."""
    at_least: bool = False
    """The true rate lies at or above ``rate_at_limit_per_s``: the search stopped there."""
    broken: tuple[str, ...] = ()
    """Names of the clauses that break first beyond that rate; empty where the search did not go beyond it."""
    pool: str | None = None
    """Of a plan of several pools: whose limit it is, at a rate of the whole demand."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rejected:
    """A candidate that cannot serve at any count, and why."""

    gpu: str
    precision: str
    tensor_parallel: int
    reasons: tuple[Reason, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Sized:
    """A candidate with the replica count at which replay keeps the promise."""

    replica: ReplicaPhysics
    carrying_count: int
    """Replicas that keep the promise alone, the spare ones gone."""
    spare_count: int
    price: GpuPrice
    price_low_usd_per_gpu_hour: float
    price_high_usd_per_gpu_hour: float
    slo: tuple[SloResult, ...]
    """With the spare gone; every entry kept."""
    beside: str | None = None
    """The pool on whose GPUs the replicas stand, one on those of each; ``None``: they have their own."""

    @property
    def replica_count(self) -> int:
        """Carrying and spare replicas together."""
        return self.carrying_count + self.spare_count

    @property
    def gpu_count(self) -> int:
        """GPUs of the whole group; those that it shares count where they belong."""
        return 0 if self.beside is not None else self.replica_count * self.replica.deployment.layout.gpu_count

    @property
    def price_usd_per_hour(self) -> float:
        """What the group costs for one hour."""
        return self.gpu_count * self.price.price_usd_per_gpu_hour


@dataclass(frozen=True, slots=True, kw_only=True)
class Outpriced:
    """A candidate whose exact count was not sought: any count that could serve costs more than the chosen fleet."""

    replica: ReplicaPhysics
    failed_count: int
    """The largest count cheaper than the best fleet known then; replay broke the promise with it. 0 when even one
    replica and the spare cost more than that fleet."""
    broken: tuple[str, ...]
    """Names of the promises broken at ``failed_count``."""
    price: GpuPrice
    shown_by: str = ""
    """Who was replayed instead, in words, where it is at least as good in everything; empty where it was itself."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitPool:
    """One pool of a split, sized on its own requests and peak, with its own spare replicas."""

    name: str
    """Whom it serves: ``prompts up to 2,048 tokens``."""
    takes: Takes
    request_fraction: float
    sized: Sized
    router: Router


@dataclass(frozen=True, slots=True, kw_only=True)
class SplitTrial:
    """Pools of their own for some of the requests each."""

    by: SplitBy
    named: str
    """Where the split is: ``prompts up to 2,048 tokens, and longer``."""
    estimated_usd_per_hour: float | None
    """By formula, which chose those that were replayed; ``None`` where no candidate passes its floors."""
    pools: tuple[SplitPool, ...]
    """Empty where it was not replayed, or where a pool has no fleet."""
    why: str
    """Why it won or lost against one pool, in words."""

    @property
    def price_usd_per_hour(self) -> float | None:
        """What all pools cost for one hour; ``None`` without pools."""
        return sum(pool.sized.price_usd_per_hour for pool in self.pools) if self.pools else None


@dataclass(frozen=True, slots=True, kw_only=True)
class Bill:
    """One hour of the fleet at the replayed load, split so that the lines add up to ``total_usd_per_hour``.

    Input, cached and output are priced as on a fleet that is full.
    """

    span_s: float
    """Time that the replayed demand stands for, see :func:`tokenfleet.cost.span_of`."""
    total_usd_per_hour: float
    input_usd_per_hour: float
    cached_usd_per_hour: float
    output_usd_per_hour: float
    headroom_usd_per_hour: float
    """Room that the promise keeps free beside the work, at every load as much of it as at the peak."""
    idle_usd_per_hour: float
    """Carrying replicas that a load below the peak has no use for: a fleet that followed the demand would give them
    back."""
    spare_usd_per_hour: float
    """Replicas kept for the day one fails."""
    usd_per_million_input_tokens: float | None
    usd_per_million_cached_tokens: float | None
    usd_per_million_output_tokens: float | None
    usd_per_million_output_tokens_loaded: float | None
    """The whole bill over output tokens alone: the figure to compare with another fleet, not a price."""
    usd_per_request: float | None
    """The whole bill over requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantShare:
    """What one tenant pays of a month, in whole cents written as dollars."""

    tenant: str
    request_count: int
    """Finished requests in the trace, not in the month; so are the tokens."""
    input_tokens: int
    """Prompt tokens that no cache served."""
    cached_tokens: int
    output_tokens: int
    busy_usd: float
    """Its part of the lines of work, by the gpu time of its requests."""
    loaded_usd: float
    """The same with headroom, idle time and spare replicas, shared by the gpu time that each takes at the peak."""
    busy_usd_per_request: float | None = None
    """Its work over its requests of the month; ``None`` where none finished."""
    loaded_usd_per_request: float | None = None
    loaded_usd_per_million_output_tokens: float | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class TenantInvoice:
    """A month of the bill by tenant: tenants, headroom, idle and spare are the total, to the cent."""

    duration_s: float
    """Time billed."""
    total_usd: float
    headroom_usd: float
    idle_usd: float
    spare_usd: float
    tenants: tuple[TenantShare, ...]
    by: Literal["tenant", "label", "model", "class"] = "tenant"
    """What stands for tenants: tenants of the log, its labels (task, tier, feature, business line), models it names, or
    classes that promises are made to, each combination of classes on its own."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlanQuestion:
    """What a plan must answer, resolved: no names left to look up."""

    name: str
    model: ModelArchitecture
    slo: Slo
    candidates: tuple[ReplicaPhysics, ...]
    rejected: tuple[Rejected, ...]
    """Out before any replay (memory, unsupported precision), so that the answer can say why."""
    prices: tuple[GpuPrice, ...]
    """Every quote that counts. Of several for one gpu the one nearest their median is the reference, the lowest
    and highest are the range; a gpu without a quote is out, never free."""
    spare_replica_count: int
    router: str
    seed: int
    vary_step_tokens: bool = True
    """The planner may try smaller steps (``max_batched_tokens``) where a promise on ITL or TPOT asks for them.
    ``False`` when a person has fixed the setting."""
    first_look: bool = False
    """Leave out the load curve, the frontier and the sensitivity: an answer while a person waits."""
    stands_for_count: int = 1
    """Each request of the trace stands for so many of the demand, where the demand is too large to replay: the planner
    sizes the part and multiplies."""
    redundancy: Redundancy = field(default_factory=Redundancy)
    """Nodes and zones that may be lost, and where replicas may stand; ``spare_replica_count`` has the replicas."""
    rollout: Rollout = field(default_factory=Rollout)
    clients: Clients | None = None
    """What clients do about a request lost with its replica; ``None``: nobody says."""
    admission: Admission = field(default_factory=Admission)
    """The bound of the queue while something is lost."""
    apart: ApartQuestion | None = None
    """Try prefill and decode in pools of their own too."""
    utilization_cap_fraction: float | None = None
    """Share of the rate they sustain that the carrying replicas may take at the peak; ``None``: all of it."""
    routers: tuple[Router, ...] = ()
    """Routers to try beside ``router``; the plan takes whichever needs the fewest replicas."""
    buying: Buying = field(default_factory=Buying)
    """When the fleet is needed, and on which terms its gpus can be had."""
    splits: tuple[SplitBy, ...] = ()
    """Pools of their own to try, for some of the requests each."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedPool:
    """One pool of a plan of several."""

    name: str
    """``short``, ``long``, a task, ``tier-0``, ``prefill``, ``decode``: unique in its plan."""
    who: str
    """Whom it serves, in words."""
    does: Does
    takes: Takes | None
    """Which requests come to it; ``None``: all, or those that the scenario which named it says."""
    request_fraction: float
    plan: "Plan"
    """Its fleet, sized and examined on its own requests at its own peak; where requests go through several pools, on
    all requests through all of them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The answer: one fleet (``chosen``), or several ``pools``, or neither when nothing keeps the promise.

    Then ``reasons`` say why. Of a plan of several pools everything but the pools is about the whole.
    """

    question: PlanQuestion
    chosen: Sized | None
    """``None`` in a plan of several pools too."""
    runners_up: tuple[Sized, ...]
    """Every other candidate that keeps the promise, cheapest first."""
    rejected: tuple[Rejected, ...]
    reasons: tuple[Reason, ...]
    fleet: Fleet | None
    record: RunRecord | None
    """Replay of the whole fleet."""
    degraded: RunRecord | None
    """Replay with the spare replicas gone; equals ``record`` when none are spare."""
    slo_whole: tuple[SloResult, ...]
    """All replicas present, requests that arrive in the peak window."""
    slo_degraded: tuple[SloResult, ...]
    """The spare gone, requests that arrive in the peak window: the hardest case, and the one a person is shown."""
    limits: tuple[LimitUse, ...]
    """Tightest first: the first binds, the second binds next."""
    curve: tuple[CurvePoint, ...]
    bill: Bill | None
    peak_start_s: float
    peak_end_s: float
    replayed_count: int
    assumptions: tuple[str, ...]
    slo_whole_overall: tuple[SloResult, ...] = ()
    """All replicas present, every request of the trace."""
    slo_degraded_overall: tuple[SloResult, ...] = ()
    """The spare gone, every request of the trace."""
    peak_rate_per_s: float = 0.0
    """Requests per second in the peak window."""
    saturated_rate_per_s: float | None = None
    """Requests per second that the carrying replicas get through with a queue that never empties, whoever waits;
    ``None``: not asked."""
    mean_rate_per_s: float = 0.0
    """Requests per second over the whole demand."""
    sustained_rate_per_s: float | None = None
    """Largest peak rate at which the carrying replicas keep the promise, by replay of this traffic made denser."""
    found_within_fraction: float | None = None
    """How much more than that rate, and than those of the limits, may be true: the search for them stopped there."""
    kv_peak_fraction: float | None = None
    """KV blocks in use on the fullest replica in the peak window, the spare gone."""
    sequence_peak_count: int | None = None
    """Sequences on the fullest replica in the peak window, the spare gone."""
    frontier: tuple[FrontierPoint, ...] = ()
    outpriced: tuple[Outpriced, ...] = ()
    sure: Sized | None = None
    """The cheapest fleet of the chosen kind that keeps the promise even at the slow end of the error band; ``None``
    when no count does. Sized where candidates are, not proved on a trace that was cut for the search."""
    sure_pools: tuple[Sized, ...] = ()
    """The same of a plan of several pools, in their order; empty when one of them has none."""
    tried_count: int = 0
    """Candidates the search had, those with smaller steps and those without a chance included."""
    wall_s: float | None = None
    """Seconds the plan took; ``None`` when nobody passed a clock."""
    anomalies: tuple[str, ...] = ()
    """Where more replicas did worse than fewer, in plain words."""
    sensitivity: tuple[SensitivityCase, ...] = ()
    confidence: Confidence | None = None
    invoice: TenantInvoice | None = None
    """``None`` when the trace names no tenants."""
    invoices: tuple[TenantInvoice, ...] = ()
    """The same month by label, model and class, where the trace has them."""
    purchase: Purchase | None = None
    purchase_missing: str = ""
    """Why there is none, and what to give."""
    """``None`` when the trace shows less than a day, or when the price is not that of an hour on demand."""
    warnings: tuple[Reason, ...] = ()
    """What is odd about the promise itself, whatever the fleet."""
    placement: Placement | None = None
    """Where the replicas stand; ``None`` without a fleet."""
    losses: tuple[LossCase, ...] = ()
    """What happens to the promise when the worst replica, node or zone is gone, and while a version is changed."""
    apart: ApartAnswer | None = None
    """Prefill and decode in pools of their own, at the same promise; ``None`` when nobody asked."""
    routers: tuple[RouterTrial, ...] = ()
    """What came of other routers, the one the plan uses first; empty when nobody asked."""
    splits: tuple[SplitTrial, ...] = ()
    """What came of other pools, the cheapest first, those without a price last; empty when nobody asked."""
    rough: Rough | None = None
    """What rules of thumb say of the same fleet; ``None`` without one."""
    alternatives: Alternatives | None = None
    """Owning, APIs and unit costs; ``None`` where nobody gave facts of them."""
    obtainable: Obtainable | None = None
    """Whether the GPUs can be had; ``None`` for a first look, and without a fleet."""
    pools: tuple[PlannedPool, ...] = ()
    """What is bought instead of one fleet, where that costs less."""
    handover: Handover | None = None
    """How KV gets from the first of the pools to the second; ``None``: they stand side by side."""
    stages: str = ""
    """The way of requests through pools that somebody named, in words; empty where the plan chose them."""

    @property
    def fleets(self) -> tuple[Sized, ...]:
        """Everything that is bought; empty when nothing keeps the promise."""
        if self.chosen is not None:
            return (self.chosen,)
        return tuple(sized for pool in self.pools for sized in pool.plan.fleets)

    @property
    def one_fleet(self) -> Sized | None:
        """The best fleet for everybody, be it bought or lost to pools; ``None`` where none keeps the promise."""
        if self.chosen is not None:
            return self.chosen
        return self.runners_up[0] if self.runners_up else None

    @property
    def price_usd_per_hour(self) -> float | None:
        """What that costs for one hour; ``None`` without an answer."""
        return sum(sized.price_usd_per_hour for sized in self.fleets) if self.fleets else None

    @property
    def spare_count(self) -> int:
        """Spare replicas of every fleet together."""
        return sum(sized.spare_count for sized in self.fleets)

    @property
    def utilization_carrying_fraction(self) -> float | None:
        """Peak rate over the rate the carrying replicas sustain within the promise; ``None`` where that is unknown."""
        return self.peak_rate_per_s / self.sustained_rate_per_s if self.sustained_rate_per_s else None

    @property
    def utilization_fraction(self) -> float | None:
        """The same of all replicas, taken to sustain as much each: what the promise, the bursts and the spare leave."""
        carrying = self.utilization_carrying_fraction
        if carrying is None or self.chosen is None:
            return None
        return carrying * self.chosen.carrying_count / self.chosen.replica_count

    @property
    def promise_leaves_fraction(self) -> float | None:
        """What the promise leaves of the rate that a queue that never empties would allow, at most 1.

        All of it where work may wait: the peak that is sustained is then larger than what is done while it lasts.
        ``None`` where one of the rates is unknown, or no load was found that breaks the promise.
        """
        if self.saturated_rate_per_s is None or self.sustained_rate_per_s is None:
            return None
        left = self.sustained_rate_per_s / self.saturated_rate_per_s
        if left < 1.0 and self.limits and self.limits[0].at_least:
            return None
        return min(1.0, left)

    @property
    def peak_to_saturated_ratio(self) -> float | None:
        """Peak rate over what all replicas, taken to do as much each, get through with a queue that never empties.

        Above 1 more comes at the peak than they get done, and waits.
        """
        if self.saturated_rate_per_s is None or self.chosen is None:
            return None
        carrying = self.chosen.carrying_count / self.chosen.replica_count
        return self.peak_rate_per_s / self.saturated_rate_per_s * carrying

    @property
    def utilization_mean_fraction(self) -> float | None:
        """The same over the whole demand, at its mean rate."""
        peak = self.utilization_fraction
        return peak * self.mean_rate_per_s / self.peak_rate_per_s if peak is not None and self.peak_rate_per_s else None
