"""The capacity contract as types. Strict: an unknown key, a missing one or a wrong type is a problem.

The order of the fields is the order a person reads. Times are seconds, money is dollars, shares are fractions.
"""

from datetime import date
from typing import Annotated, Final, Literal

from pydantic import BaseModel, ConfigDict, Field, model_validator

from tokenfleet.domain.plan import Does
from tokenfleet.domain.slo import Deadline, LatencyTarget, Metric, RateName, RateTarget, Slo, TrafficClass

FORMAT: Final = 1
_ONE_FLEET: Final = ("runtime", "gpu", "fleet", "limits")

Count = Annotated[int, Field(ge=0)]
Amount = Annotated[float, Field(ge=0, allow_inf_nan=False)]
Fraction = Annotated[float, Field(ge=0, le=1, allow_inf_nan=False)]


class _Part(BaseModel):
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)


class Model(_Part):
    """What is served."""

    name: str
    sha256: str


class Runtime(_Part):
    """The engine and every setting that shapes memory and batching."""

    engine: str
    settings: dict[str, str | int | float | bool | None]
    sha256: str
    """Of the settings."""


class Hardware(_Part):
    """One replica."""

    name: str
    per_replica_count: Annotated[int, Field(ge=1)]
    tensor_parallel: Annotated[int, Field(ge=1)]
    pipeline_parallel: Annotated[int, Field(ge=1)] = 1
    attention_data_parallel: Annotated[int, Field(ge=1)] = 1
    precision: str
    kv_precision: str


class Handover(_Part):
    """What KV crosses between two pools, and whose first token the user gets."""

    link: str
    first_token: Literal["prefill", "decode"]
    overlap: bool


class FleetSize(_Part):
    """How many."""

    replica_count: Annotated[int, Field(ge=1)]
    carrying_count: Annotated[int, Field(ge=1)]
    spare_count: Count
    gpu_count: Count
    router: str


class Demand(_Part):
    """The traffic the promise was examined with. More of it, or longer requests, and the promise is not examined."""

    name: str
    sha256: str
    request_count: Count
    peak_start_s: Amount
    peak_end_s: Amount
    peak_rate_per_s: Amount
    peak_input_tokens_per_s: Amount
    peak_output_tokens_per_s: Amount
    input_tokens_p50: Amount
    input_tokens_p95: Amount
    input_tokens_max: Amount
    output_tokens_p50: Amount
    output_tokens_p95: Amount
    output_tokens_max: Amount


class LatencyClause(_Part):
    """``metric`` at ``quantile`` is at most ``limit_s``."""

    metric: Metric
    quantile: Annotated[float, Field(gt=0, lt=1)]
    limit_s: Annotated[float, Field(gt=0, allow_inf_nan=False)]
    traffic_class: str | None = None


class RateClause(_Part):
    """At most ``limit_fraction`` of the requests of a class end so."""

    kind: RateName
    limit_fraction: Fraction
    traffic_class: str | None = None


class DeadlineClause(_Part):
    """Requests are done so long after they arrive, or at the next moment of a daily clock."""

    within_s: Annotated[float, Field(gt=0, allow_inf_nan=False)] | None = None
    at_s: Amount | None = None
    cut_off_s: Amount | None = None
    quantile: Annotated[float, Field(gt=0, le=1)]
    traffic_class: str | None = None


class ClassClause(_Part):
    """Requests to which promises of their own are made."""

    name: str
    takes: str


class Promise(_Part):
    """What is promised, at the peak, with ``survives.replica.count`` replicas gone."""

    latency: tuple[LatencyClause, ...]
    error_rate_fraction: Fraction
    rejection_rate_fraction: Fraction | None = None
    queue_limit_count: Count | None = None
    class_rates: tuple[RateClause, ...] = ()
    deadlines: tuple[DeadlineClause, ...] = ()
    classes: tuple[ClassClause, ...] = ()

    @property
    def slo(self) -> Slo:
        """As the judge takes it."""
        return Slo(
            latency=tuple(LatencyTarget(**dict(clause)) for clause in self.latency),
            error_rate_fraction=self.error_rate_fraction,
            rejection_rate_fraction=self.rejection_rate_fraction,
            queue_limit_count=self.queue_limit_count,
            class_rates=tuple(RateTarget(**dict(clause)) for clause in self.class_rates),
            deadlines=tuple(Deadline(**dict(clause)) for clause in self.deadlines),
            classes=tuple(TrafficClass(**dict(each)) for each in self.classes),
        )


class ClauseResult(_Part):
    """One clause in the replay: what was predicted, with its 90 % range."""

    name: str
    unit: str
    promised: float
    predicted: float | None
    predicted_low: float | None
    predicted_high: float | None
    sample_count: Count
    kept: bool
    traffic_class: str | None = None


class ReplayEvidence(_Part):
    """The replay behind the promise."""

    made_on: date
    package_version: str
    seed: int
    peak_spare_gone: tuple[ClauseResult, ...]
    peak_all_present: tuple[ClauseResult, ...]


class LoadTestEvidence(_Part):
    """A measured run."""

    made_on: date
    run_sha256: str
    clauses: tuple[ClauseResult, ...]


class Evidence(_Part):
    """Why anybody should believe it. Replay alone leaves a contract UNPROVEN."""

    status: Literal["UNPROVEN", "PROVEN", "BROKEN"]
    replay: ReplayEvidence
    load_test: LoadTestEvidence | None


class Loss(_Part):
    """A loss the promise was examined with. ``kept`` is null where it was not examined."""

    count: Count
    kept: bool | None
    how: str


class Survives(_Part):
    """What may fail."""

    replica: Loss
    node: Loss
    zone: Loss
    rollout: Loss


class Drilled(_Part):
    """One bad day, gone through by replay. ``passed`` is null where it could not be."""

    name: str
    what: str
    passed: bool | None
    how: str
    made_on: date
    clauses: tuple[ClauseResult, ...]


class Limits(_Part):
    """Where it ends. The fleet's rates are those of the carrying replicas."""

    sequences_per_replica_count: Annotated[int, Field(ge=1)]
    longest_request_tokens: Annotated[int, Field(ge=1)]
    sustained_rate_per_s: Amount | None
    binding: str | None
    next: str | None
    next_rate_per_s: Amount | None
    kv_peak_fraction: Fraction | None
    sequence_peak_count: Count | None


class Taken(_Part):
    """Which requests a pool answers; null does not matter."""

    input_over_tokens: Count | None
    input_up_to_tokens: Count | None
    label: str | None
    priority: int | None


class Pool(_Part):
    """One of several fleets: what runs, how many, where it ends. Its limits are those of its own demand."""

    name: str
    does: Does
    takes: Taken | None = None
    """Null: all requests come to it, or those that ``serves`` says."""
    serves: str | None = None
    """Model and requests of a pool that a scenario names, in words."""
    beside: str | None = None
    """The pool on whose GPUs it stands, which count there."""
    runtime: Runtime
    gpu: Hardware
    fleet: FleetSize
    survives: Survives
    limits: Limits
    usd_per_hour: Amount


class ScaleOut(_Part):
    """Time from the decision to a ready replica. Null is unknown; nothing in the promise counts on it."""

    ready_after_s: Amount | None
    source: str
    startup_budget_s: Amount | None = None
    """What a start-up probe must allow."""
    most_gpu_count: Count | None = None
    """GPUs held at the worst: while it has grown as far as it may, and a version is replaced."""
    allowed_gpu_count: Count | None = None
    """GPUs that quota and zones allow; null: nobody says."""
    capacity_assured: bool | None = None
    """More than one zone, or another gpu model with a fleet that keeps the promise."""


class Cost(_Part):
    """One hour of the fleet. The lines add up to the total."""

    total_usd_per_hour: Amount
    low_usd_per_hour: Amount
    high_usd_per_hour: Amount
    input_usd_per_hour: Amount
    cached_usd_per_hour: Amount
    output_usd_per_hour: Amount
    headroom_usd_per_hour: Amount
    idle_usd_per_hour: Amount
    spare_usd_per_hour: Amount
    price_source: str


class Validity(_Part):
    """When it ends. A changed digest ends it at once."""

    since: date
    until: date
    void_if_changed: dict[str, str]
    """sha256 by what it covers."""


class Contract(_Part):
    """The whole of it."""

    contract: Literal[1]
    """Version of this format."""
    name: str
    model: Model
    runtime: Runtime | None = None
    gpu: Hardware | None = None
    fleet: FleetSize | None = None
    pools: tuple[Pool, ...] = ()
    """Several fleets instead of one; then ``runtime``, ``gpu``, ``fleet`` and ``limits`` stand under each of them."""
    handover: Handover | None = None
    """How KV gets from the pool that prefills to the one that decodes."""
    workload: Demand
    promise: Promise
    evidence: Evidence
    survives: Survives
    drills: tuple[Drilled, ...] = ()
    limits: Limits | None = None
    scale_out: ScaleOut
    degrade: tuple[str, ...]
    """Steps taken when more arrives than promised for, mildest first; empty: none declared."""
    cost: Cost
    valid: Validity
    assumptions: tuple[str, ...]

    @model_validator(mode="after")
    def _one_fleet_or_pools(self) -> "Contract":
        said = [name for name in _ONE_FLEET if getattr(self, name) is not None]
        if self.pools and said:
            raise ValueError(f"{' and '.join(said)} beside pools: each pool has its own")
        missing = [name for name in _ONE_FLEET if name not in said]
        if not self.pools and missing:
            raise ValueError(f"{' and '.join(missing)}: field required")
        return self

    @property
    def longest_request_tokens(self) -> int:
        """Prompt and output that some replica holds."""
        every = [pool.limits for pool in self.pools] + ([self.limits] if self.limits else [])
        return max(each.longest_request_tokens for each in every)

    @property
    def fleets(self) -> tuple[tuple[str | None, Hardware, FleetSize], ...]:
        """Every fleet with its replica and the name of the pool that it is, if any."""
        if self.gpu is not None and self.fleet is not None:
            return ((None, self.gpu, self.fleet),)
        return tuple((pool.name, pool.gpu, pool.fleet) for pool in self.pools)
