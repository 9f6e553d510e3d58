"""Before any replay: which candidates pass their floors and have a price."""

from collections.abc import Sequence
from dataclasses import field, replace

from tokenfleet.domain.plan import PlanQuestion, Reason, Rejected
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import Slo
from tokenfleet.planner import words
from tokenfleet.planner.candidates import Candidate, Profiles, profiles_of
from tokenfleet.planner.estimate import Estimate, replica_estimate
from tokenfleet.planner.floors import Shapes, floor_excess, floors, shapes
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.prompts import AFFINE, Prompts, prompts_of
from tokenfleet.planner.quotes import quote
from tokenfleet.planner.recalling import Recall, anew
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


@dataclass(frozen=True, slots=True)
class Formula:
    """What formulas say of a replica: nothing that hangs on prices, or on what may be lost."""

    reasons: tuple[Reason, ...]
    """Floors that break the promise."""
    estimate: Estimate
    """Replicas that the peak window needs; none of a variant below a floor, which nobody asks."""
    excess: float
    """Largest ratio of a floor to its limit; 0 of a replica that breaks none."""


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
    question: PlanQuestion,
    traffic: Traffic,
    variants: Sequence[ReplicaPhysics],
    reporter: Reporter,
    recall: Recall = anew,
) -> Screened:
    """Sorts the candidates of ``question`` by what formulas and price lists alone can say.

    ``variants`` are candidates with smaller steps; one that fails goes unsaid, as the candidate it comes from
    speaks for it: a smaller step never makes a lone prefill shorter.
    """
    result = Screened(rejected=list(question.rejected))
    every = [(replica, False) for replica in question.candidates] + [(replica, True) for replica in variants]
    found = recall(
        "formulas",
        (question.candidates, tuple(variants), traffic, question.slo, question.router),
        lambda: _formulas(every, traffic, question, reporter),
    )
    profiles = recall(
        "profiles", (question.candidates, tuple(variants)), lambda: tuple(profiles_of(each) for each, _ in every)
    )
    for (replica, variant), formula, profile in zip(every, found, profiles, strict=True):
        _sort_in(result, replica, formula, profile, question, variant)
    result.floored.sort(key=lambda one: (one.excess, words.layout(one.replica.deployment)))
    if result.floored and not result.candidates:
        first = result.floored[0]
        lengths = shapes(
            traffic.trace,
            question.slo,
            caching=first.replica.deployment.engine.prefix_caching,
            window_s=traffic.window_s,
        )
        result.floored[0] = replace(first, reasons=floors(first.replica, lengths, question.slo, fastest=True))
    return result


def _formulas(
    every: Sequence[tuple[ReplicaPhysics, bool]], traffic: Traffic, question: PlanQuestion, reporter: Reporter
) -> tuple[Formula, ...]:
    # Lengths depend on the traffic and on whether prefixes are cached, not on the candidate.
    lengths: dict[bool, tuple[Shapes, Demand, Prompts]] = {}
    formulas = []
    for replica, variant in every:
        reporter.say("floors", words.layout(replica.deployment), 0.0)
        caching = replica.deployment.engine.prefix_caching
        if caching not in lengths:
            lengths[caching] = (
                shapes(traffic.trace, question.slo, caching=caching, window_s=traffic.window_s),
                demand(traffic, caching=caching),
                prompts_of(traffic, caching=caching, affine=question.router in AFFINE),
            )
        formulas.append(_formula(replica, *lengths[caching], question.slo, variant))
    return tuple(formulas)


def _formula(
    replica: ReplicaPhysics, found: Shapes, wanted: Demand, prompts: Prompts, slo: Slo, variant: bool
) -> Formula:
    reasons = tuple(floors(replica, found, slo))
    unasked = Estimate(count=0, doubtful=True)
    return Formula(
        reasons=reasons,
        estimate=unasked if reasons and variant else replica_estimate(replica, wanted, prompts, slo),
        excess=floor_excess(replica, found, slo) if reasons and not variant else 0.0,
    )


def _sort_in(
    result: Screened,
    replica: ReplicaPhysics,
    formula: Formula,
    profiles: Profiles,
    question: PlanQuestion,
    variant: bool,
) -> None:
    reasons = formula.reasons
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
        result.candidates.append(Candidate(replica, price, formula.estimate.count, profiles, formula.estimate.doubtful))
        return
    if variant:
        return
    result.rejected.append(rejected(replica, reasons))
    if price is not None and lame is None:
        result.floored.append(Floored(replica, formula.estimate.count, formula.excess, reasons))


def rejected(replica: ReplicaPhysics, reasons: Sequence[Reason]) -> Rejected:
    """A candidate that is out."""
    deployment = replica.deployment
    return Rejected(
        gpu=deployment.gpu,
        precision=deployment.precision,
        tensor_parallel=deployment.layout.tensor_parallel,
        reasons=tuple(reasons),
    )
