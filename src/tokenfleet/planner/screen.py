"""Before any replay: which candidates pass their floors and have a price."""

from collections.abc import Sequence
from dataclasses import dataclass, field, replace

from tokenfleet.domain.plan import PlanQuestion, Reason, Rejected
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import Slo
from tokenfleet.planner import words
from tokenfleet.planner.candidates import Candidate
from tokenfleet.planner.estimate import replica_estimate
from tokenfleet.planner.floors import Shapes, floors, latency_floor_s, shapes
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.quotes import quote
from tokenfleet.planner.redundancy import cannot_survive
from tokenfleet.planner.traffic import Demand, Traffic, demand


@dataclass(frozen=True, slots=True)
class Floored:
    """A candidate whose floor breaks the promise."""

    replica: ReplicaPhysics
    estimate: int
    excess: float
    """Largest ratio of a floor to its limit."""
    reasons: tuple[Reason, ...]


@dataclass(slots=True)
class Screened:
    """Candidates sorted out."""

    candidates: list[Candidate] = field(default_factory=list)
    """In the order they were asked about, variants last."""
    floored: list[Floored] = field(default_factory=list)
    """Nearest to the promise first."""
    rejected: list[Rejected] = field(default_factory=list)
    """With their reasons, those out before the planner was asked included."""


def screen(
    question: PlanQuestion, traffic: Traffic, variants: Sequence[ReplicaPhysics], reporter: Reporter
) -> Screened:
    """Sorts the candidates of ``question`` by what formulas and price lists alone can say.

    ``variants`` are candidates with smaller steps; one that fails goes unsaid, as the candidate it comes from
    speaks for it: a smaller step never makes a lone prefill shorter.
    """
    result = Screened(rejected=list(question.rejected))
    # Lengths depend on the traffic and on whether prefixes are cached, not on the candidate.
    lengths: dict[bool, tuple[Shapes, Demand]] = {}
    every = [(replica, False) for replica in question.candidates] + [(replica, True) for replica in variants]
    for replica, variant in every:
        reporter.say("floors", words.layout(replica.deployment), 0.0)
        caching = replica.deployment.engine.prefix_caching
        if caching not in lengths:
            lengths[caching] = (
                shapes(traffic.trace, question.slo, caching=caching),
                demand(traffic, caching=caching),
            )
        _sort_in(result, replica, *lengths[caching], question, variant)
    result.floored.sort(key=lambda one: (one.excess, words.layout(one.replica.deployment)))
    if result.floored and not result.candidates:
        first = result.floored[0]
        found = lengths[first.replica.deployment.engine.prefix_caching][0]
        result.floored[0] = replace(first, reasons=floors(first.replica, found, question.slo, fastest=True))
    return result


def _sort_in(
    result: Screened, replica: ReplicaPhysics, found: Shapes, wanted: Demand, question: PlanQuestion, variant: bool
) -> None:
    slo = question.slo
    reasons = floors(replica, found, slo)
    price = quote(question.prices, replica.deployment.gpu)
    if price is None:
        gpu = replica.deployment.gpu
        reason = Reason(
            kind="price_missing",
            text=f"Nobody's price for {gpu} is known under the term asked for; a fleet of it cannot be compared.",
            relax=f"give your own price for {gpu}",
        )
        reasons = (*reasons, reason)
    lame = cannot_survive(question, replica)
    if lame is not None:
        reasons = (*reasons, lame)
    if price is not None and not reasons:
        result.candidates.append(Candidate(replica, price, replica_estimate(replica, wanted, slo)))
        return
    if variant:
        return
    result.rejected.append(rejected(replica, reasons))
    if price is not None and lame is None:
        estimate = replica_estimate(replica, wanted, slo)
        result.floored.append(Floored(replica, estimate, _excess(replica, found, slo), reasons))


def rejected(replica: ReplicaPhysics, reasons: Sequence[Reason]) -> Rejected:
    """A candidate that is out."""
    deployment = replica.deployment
    return Rejected(
        gpu=deployment.gpu,
        precision=deployment.precision,
        tensor_parallel=deployment.layout.tensor_parallel,
        reasons=tuple(reasons),
    )


def _excess(replica: ReplicaPhysics, found: Shapes, slo: Slo) -> float:
    ratios = [
        floor_s / target.limit_s
        for target in slo.latency
        if (floor_s := latency_floor_s(replica, found, target)) is not None
    ]
    return max(ratios, default=0.0)
