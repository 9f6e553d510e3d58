"""What surrounds a plan: other prices and latencies, other loads, and what happens when an assumption is wrong."""

from collections.abc import Mapping
from dataclasses import field

from tokenfleet.domain.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPool:
    """One pool of such a fleet."""

    name: str
    gpu: str
    precision: str
    tensor_parallel: int
    replica_count: int
    """Carrying and spare."""


@dataclass(frozen=True, slots=True, kw_only=True)
class FrontierPoint:
    """One fleet in the plane of price against latency, judged in the peak window with the spare gone."""

    gpu: str | None
    """``None`` where its pools are of several; so it is with ``precision`` and ``tensor_parallel``."""
    precision: str | None
    tensor_parallel: int | None
    replica_count: int
    """Carrying and spare."""
    price_usd_per_hour: float
    ttft_p99_s: float | None
    itl_p99_s: float | None
    promised_s: Mapping[str, float | None] = field(default_factory=dict)
    """The same of each latency promised, by the name of its clause, such as ``tpot_p95``."""
    efficient: bool
    """No other point is at least as good in price, TTFT and ITL and better in one."""
    pools: tuple[FrontierPool, ...] = ()
    """Its pools, where it is a fleet of several."""


@dataclass(frozen=True, slots=True, kw_only=True)
class CurvePoint:
    """The chosen fleet at one load."""

    load_fraction: float
    """Load as a multiple of the planned peak, carried without the spare."""
    rate_per_s: float
    ttft_p50_s: float | None
    ttft_p99_s: float | None
    itl_p50_s: float | None
    itl_p99_s: float | None
    promised_s: Mapping[str, float | None] = field(default_factory=dict)
    """Of each latency promised, by the name of its clause, such as ``tpot_p95``."""
    kept: bool
    """In the peak window, whose times these are, and over all requests."""


@dataclass(frozen=True, slots=True, kw_only=True)
class SensitivityCase:
    """The chosen fleet when one assumption is wrong, the spare gone."""

    assumption: str
    """``demand``, ``input tokens``, ``prefix cache``, ``step time``, ``price``."""
    change: str
    """``+30%``, ``off``, ``x 1.4``."""
    kept: bool
    """The carrying replicas as planned keep the promise all the same."""
    broken: tuple[str, ...]
    """Names of the clauses they break."""
    replica_count: int | None
    """Replicas of this kind, the spare ones included, that would be needed; ``None`` when no count tried is enough."""
    price_usd_per_hour: float | None
    """What those cost."""
    note: str = ""
    """What is odd about it, where something is: an easier case that breaks what the harder one keeps."""
    pool_replica_count: tuple[int, ...] = ()
    """``replica_count`` pool by pool, in the order of the plan, where it has several."""

    @property
    def is_slow_end(self) -> bool:
        """Whether steps are as slow as their error band allows."""
        return self.assumption == "step time" and self.change.startswith("x")


@dataclass(frozen=True, slots=True, kw_only=True)
class Confidence:
    """How likely the promise holds at the peak with the spare gone, if step times are all that may be wrong."""

    probability_fraction: float
    breaking_step_factor: float
    """The promise is kept up to this factor on every step time, and broken 3 % above it."""
    band_factor: float
    """The 90 % interval of the step time, as a factor either way; the factor is taken to be log-normal."""
    at_least: bool
    """Nothing broke where the search stopped."""
