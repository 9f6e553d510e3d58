"""Mistakes in what is asked for: a sentence of what is wrong with a scenario, or ``None`` where nothing is."""

from collections.abc import Iterable
from typing import Final

from tokenfleet.app.scenario_types import Scenario
from tokenfleet.domain.slo import LatencyTarget

LEAST_PEAK_TO_MEAN: Final = 1.2
"""A busiest minute closer to the mean is the mean."""
_TAIL_QUANTILE: Final = 0.9


def _when(found: bool, text: str) -> str | None:
    return text if found else None


def no_spare(spare_count: int | None) -> str | None:
    """Wrong with so many spare replicas; ``None`` of them is none."""
    return _when(not spare_count, "no replica is spare: a failure or a rollout takes one that the peak needs")


def _is_waited_for(asked: Scenario) -> bool:
    """Whether somebody is promised a latency: where only deadlines are, a moment without room costs time."""
    return bool(asked.slo.targets().latency)


def no_room(asked: Scenario) -> str | None:
    """Wrong with what may be lost, and with how a new version comes."""
    spare, missing = asked.spare_replica_count, asked.rollout.max_unavailable
    lost = asked.losses
    # Who may lose a node or a zone has the room of all its replicas: how much that is, a plan says.
    if lost.node_count or lost.zone_count or not _is_waited_for(asked):
        return None
    if spare and missing > spare:
        return f"a rollout takes {missing} replicas at a time (rollout.max_unavailable), and {spare} may be missing"
    return no_spare(spare)


def bare_lengths(asked: Scenario) -> str | None:
    """Wrong with lengths that are drawn."""
    drawn = asked.workload.lengths
    if drawn is None:
        return None
    bare = [name for name in ("input", "output") if ":" not in getattr(drawn, name)]
    return _when(bool(bare), f"{' and '.join(bare)} tokens are a mean without a spread")


def average(asked: Scenario) -> str | None:
    """Wrong with how far the busiest minute is above the mean."""
    source = asked.workload
    flat = source.lengths is not None and source.peak_to_mean <= LEAST_PEAK_TO_MEAN and _is_waited_for(asked)
    return _when(flat, f"the busiest minute is {source.peak_to_mean:g} times the mean: real traffic has 1.5 to 5")


def calm(asked: Scenario) -> str | None:
    """Wrong with the gaps between arrivals."""
    drawn = asked.workload
    poisson = drawn.lengths is not None and drawn.interarrival_cv <= 1.0 and _is_waited_for(asked)
    return _when(
        poisson, "arrivals are Poisson or calmer; real ones come in bursts (coefficient of variation 1.5 to 4)"
    )


def median_only(asked: Scenario) -> str | None:
    """Wrong with the quantiles that are promised, to everybody or to a class."""
    promised = asked.slo.targets()
    every = [target for target in promised.latency if target.traffic_class is None]
    done = {each.traffic_class for each in promised.deadlines}
    if every and not _reaches_the_tail(promised.latency) and None not in done:
        return "every promise is about the middle, none about the slowest tenth"
    # What is promised to everybody is promised to each class, and a deadline is one about every request.
    bare = [
        each.name
        for each in promised.classes
        if {None, each.name}.isdisjoint(done)
        and (own := [target for target in promised.latency if target.traffic_class == each.name])
        and not _reaches_the_tail((*own, *every))
    ]
    return _when(bool(bare), f"every promise to {' and '.join(bare)} is about the middle, none about the slowest tenth")


def _reaches_the_tail(targets: Iterable[LatencyTarget]) -> bool:
    return any(target.quantile >= _TAIL_QUANTILE for target in targets)


def endless(asked: Scenario) -> str | None:
    """Wrong with a promise that ends no wait for the first token."""
    from tokenfleet.planner.promises import unbounded_wait

    return unbounded_wait(asked.slo.targets())


def uncapped(asked: Scenario) -> str | None:
    """Wrong with how long a prompt may be."""
    return _when(
        asked.engine.context_limit is None, "any prompt up to the model's own limit is let in, beside everybody else's"
    )
