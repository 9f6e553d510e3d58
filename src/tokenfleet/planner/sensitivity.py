"""What happens to the chosen fleet when an assumption is wrong, each case judged by replay."""

import math
from collections.abc import Iterator
from dataclasses import replace
from functools import cache
from itertools import repeat
from statistics import NormalDist

import numpy as np

from tokenfleet.contract import conservative_rank
from tokenfleet.domain.outlook import Confidence, SensitivityCase
from tokenfleet.domain.plan import PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import ReplicaPhysics
from tokenfleet.domain.slo import Slo
from tokenfleet.planner import words
from tokenfleet.planner.capped import at_cap, keeps_cap
from tokenfleet.planner.counting import MOST_TIMES, below_near_misses, smallest_enough
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.redundancy import spare_of_a_part
from tokenfleet.planner.replays import Replays, with_step_factor
from tokenfleet.planner.riding import riding_count
from tokenfleet.planner.traffic import Traffic, at_load
from tokenfleet.planner.verdict import Verdict

LOADS = (0.7, 1.3)
"""Of the demand, where it is wrong."""
_LONGER_INPUT = 1.25
PRECISION = 1.03
"""To which a factor on step times is found."""
FURTHEST_BANDS = 2.0
"""Step times are lengthened up to the square of the band; kept there, the promise holds with more than 99.9 %."""
_NINETY_PERCENT = NormalDist().inv_cdf(0.95)


@dataclass(frozen=True, slots=True)
class _Case:
    assumption: str
    change: str
    traffic: Traffic
    replica: ReplicaPhysics
    guess: int
    easier: bool = False
    """Than what the planned replicas keep."""


@dataclass(frozen=True, slots=True)
class _Measured:
    """What replays say of a case, before spare replicas and prices."""

    assumption: str
    change: str
    kept: bool
    broken: tuple[str, ...]
    needed_count: int | None
    """Carrying replicas; ``None`` where no count asked is enough."""
    note: str


def sensitivity(
    replays: Replays, traffic: Traffic, question: PlanQuestion, chosen: Sized, slow: Sized | None, reporter: Reporter
) -> tuple[SensitivityCase, ...]:
    """Re-judges the carrying replicas under each changed assumption, and counts how many would be needed.

    Args:
        replays: Judges.
        traffic: The traffic the fleet was sized on.
        question: What may be lost; the spare replicas depend on how many carry.
        chosen: The fleet.
        slow: The fleet that keeps the promise with the slowest steps; ``None``: none of its kind does.
        reporter: Told what is tried.

    Returns:
        Demand 30 % up and down, prompts a quarter longer, no prefix cache (where one is at work), steps at both ends of
        the error band, and the lowest and highest price known.
    """

    def measured() -> tuple[_Measured, ...]:
        found = []
        for case in _cases(traffic, chosen):
            reporter.say("sensitivity", f"{case.assumption} {case.change}", 0.985)
            found.append(_measured(replays, case, chosen.carrying_count, question))
        return tuple(found)

    asked = traffic, chosen.replica, chosen.carrying_count, question.utilization_cap_fraction
    known = replays.recalled("sensitivity", asked, measured)
    # What was changed is replayed again only where losses are to be ridden through.
    changed = _cases(traffic, chosen) if question.redundancy.ride_through else repeat(None)
    found = [
        _priced(each, chosen, _total(replays, each, case, question, chosen, reporter))
        for each, case in zip(known, changed, strict=False)
    ]
    return (*found, *_slow(replays, traffic, chosen, slow), *_prices(chosen))


def _cases(traffic: Traffic, chosen: Sized) -> Iterator[_Case]:
    replica, count = chosen.replica, chosen.carrying_count
    for load in reversed(LOADS):
        changed = at_load(traffic, load)
        if changed is not None:
            yield _Case("demand", f"{load - 1:+.0%}", changed, replica, round(count * load), easier=load < 1.0)
    yield _Case("input tokens", f"{_LONGER_INPUT - 1:+.0%}", longer(traffic), replica, count)
    if replica.deployment.engine.prefix_caching and traffic.trace.prefix_node is not None:
        yield _Case("prefix cache", "off", traffic, without_cache(replica), count)
    factor = replica.band.step_time_factor
    fast = with_step_factor(replica, 1.0 / factor)
    yield _Case("step time", f"/ {factor:.3g}", traffic, fast, max(1, round(count / factor)), easier=True)


def longer(traffic: Traffic) -> Traffic:
    """Every prompt a quarter longer; what is added is its own and shared with nobody."""
    trace = traffic.trace
    inputs = np.ceil(trace.input_tokens * _LONGER_INPUT).astype(np.int32)
    return Traffic(replace(trace, input_tokens=inputs), traffic.window_s)


def without_cache(replica: ReplicaPhysics) -> ReplicaPhysics:
    """The same replica, every prompt computed in full."""
    engine = replace(replica.deployment.engine, prefix_caching=False)
    return replace(replica, deployment=replace(replica.deployment, engine=engine))


def _measured(replays: Replays, case: _Case, carrying_count: int, question: PlanQuestion) -> _Measured:
    planned = replays.verdict(case.traffic, case.replica, carrying_count)
    note = by_chance(planned, replays.slo) if case.easier and not planned.kept else ""
    return _Measured(
        assumption=case.assumption,
        change=case.change,
        kept=planned.kept,
        broken=tuple(result.name for result in planned.broken),
        needed_count=carrying_count if note else _needed(replays, case, carrying_count, planned, question),
        note=note,
    )


def _needed(replays: Replays, case: _Case, carrying_count: int, planned: Verdict, question: PlanQuestion) -> int | None:
    """The fewest carrying replicas that keep the promise, and the cap; ``None`` where none asked do.

    Near misses are walked across as in the search, so that planning again finds as many. Where the planned ones break
    the promise, fewer are no answer.
    """
    denser = at_cap(case.traffic, question)

    @cache
    def excess(count: int) -> float:
        if count < carrying_count and not planned.kept:
            return math.inf
        verdict = planned if count == carrying_count else replays.quick(case.traffic, case.replica, count)
        return math.inf if verdict.kept and not keeps_cap(replays, denser, case.replica, count) else verdict.excess

    def keeps(count: int) -> bool:
        return excess(count) <= 1.0

    cap = min(MOST_TIMES * carrying_count, max(carrying_count, replays.most(case.traffic, case.replica)))
    start = case.guess if planned.kept else max(case.guess, carrying_count + 1)
    found = smallest_enough(keeps, min(start, cap), cap)
    return None if found is None else below_near_misses(excess, found)


def _total(
    replays: Replays, measured: _Measured, case: _Case | None, question: PlanQuestion, chosen: Sized, reporter: Reporter
) -> int | None:
    """Carrying and spare replicas, as many as ride through each loss of ``case`` where one is given."""
    needed = measured.needed_count
    if needed is None or measured.note:
        return None if needed is None else chosen.replica_count
    spare = spare_of_a_part(question, chosen.replica, needed)
    if spare is None or case is None:
        return None if spare is None else needed + spare
    enough = replace(chosen, replica=case.replica, carrying_count=needed, spare_count=spare)
    return riding_count(replays, case.traffic, question, enough, reporter)


def _priced(case: _Measured, chosen: Sized, count: int | None) -> SensitivityCase:
    per_replica = chosen.price_usd_per_hour / chosen.replica_count
    return SensitivityCase(
        assumption=case.assumption,
        change=case.change,
        kept=case.kept,
        broken=case.broken,
        replica_count=count,
        price_usd_per_hour=None if count is None else count * per_replica,
        note=case.note,
    )


def by_chance(verdict: Verdict, slo: Slo) -> str:
    """Why a promise kept in a harder case is broken in an easier one: the few requests that decide its quantile."""
    quantiles = {target.name: target.quantile for target in slo.latency}
    told = []
    for result in verdict.broken:
        quantile = quantiles.get(result.name)
        few = "" if quantile is None else _deciding(result.sample_count, quantile)
        told.append(f"{verdict.said(result)}{few}")
    return (
        f"{'; '.join(told)}. The same replicas keep it in the harder case: chance, not load, so no more are asked for"
    )


def _deciding(sample_count: int, quantile: float) -> str:
    slowest = sample_count - conservative_rank(sample_count, quantile) + 1
    return f" (of {sample_count:,} samples the {'slowest' if slowest == 1 else f'{slowest:,} slowest'} decide)"


def _slow(replays: Replays, traffic: Traffic, chosen: Sized, slow: Sized | None) -> Iterator[SensitivityCase]:
    """Steps at the slow end; the fleet for it is known already, and may have steps of another size."""
    factor = chosen.replica.band.step_time_factor
    planned = replays.verdict(traffic, with_step_factor(chosen.replica, factor), chosen.carrying_count)
    yield SensitivityCase(
        assumption="step time",
        change=f"x {factor:.3g}",
        kept=planned.kept,
        broken=tuple(result.name for result in planned.broken),
        replica_count=None if slow is None else slow.replica_count,
        price_usd_per_hour=None if slow is None else slow.price_usd_per_hour,
    )


def _prices(chosen: Sized) -> Iterator[SensitivityCase]:
    low, high = chosen.price_low_usd_per_gpu_hour, chosen.price_high_usd_per_gpu_hour
    for name, usd in (("lowest", low), ("highest", high)) if low < high else ():
        yield SensitivityCase(
            assumption="price",
            change=f"{name} offer, ${usd:.2f} per gpu-hour",
            kept=True,
            broken=(),
            replica_count=chosen.replica_count,
            price_usd_per_hour=usd * chosen.gpu_count,
        )


def confidence(replays: Replays, traffic: Traffic, chosen: Sized, reporter: Reporter) -> Confidence | None:
    """How likely the carrying replicas keep the promise, if the step time is all that may be wrong.

    The true step time is the predicted one times a log-normal factor whose 90 % interval is the error band. The
    largest factor that replay keeps is found by bisection, to 3 %; the probability is that of a smaller factor.

    Returns:
        ``None`` when the band is a point, or when the fleet does not keep the promise as predicted.
    """
    band = chosen.replica.band.step_time_factor
    if band <= 1.0:
        return None

    def keeps(factor: float) -> bool:
        fleet = words.fleet(chosen.replica, chosen.carrying_count)
        reporter.say("sensitivity", f"{fleet}, steps {factor:.2f} times as long", 0.99)
        slower = with_step_factor(chosen.replica, factor)
        return replays.quick(traffic, slower, chosen.carrying_count).kept

    if not keeps(1.0):
        return None
    good, bad = 1.0, band**FURTHEST_BANDS
    at_least = keeps(bad)
    if at_least:
        good = bad
    while bad / good > PRECISION:
        middle = math.sqrt(good * bad)
        if keeps(middle):
            good = middle
        else:
            bad = middle
    return Confidence(
        probability_fraction=probability(good, band),
        breaking_step_factor=good,
        band_factor=band,
        at_least=at_least,
    )


def probability(largest_kept_factor: float, band_factor: float) -> float:
    """P(step-time factor <= ``largest_kept_factor``), log-normal around 1 with 90 % inside ``band_factor`` either way.

    Args:
        largest_kept_factor: above 0.
        band_factor: above 1.
    """
    return NormalDist().cdf(math.log(largest_kept_factor) / math.log(band_factor) * _NINETY_PERCENT)
