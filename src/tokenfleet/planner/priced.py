"""Pools that cost less than one fleet: sized, and proved together, without all else that a plan says of them."""

from collections.abc import Iterator
from dataclasses import replace

from tokenfleet import workload
from tokenfleet.domain.plan import PlanQuestion, Sized, SplitTrial
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.trace import Trace
from tokenfleet.planner.disaggregated import handover_of, sought_apart
from tokenfleet.planner.phases import sized_phase
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.splits import split_trials
from tokenfleet.planner.spread import Replay
from tokenfleet.planner.systems import SizedPool, System, housed_in
from tokenfleet.planner.traffic import Traffic, stretch
from tokenfleet.planner.work import SEARCH_REQUESTS
from tokenfleet.simulator.splitting import DECODE, PREFILL


@dataclass(frozen=True, slots=True, kw_only=True)
class PricedPools:
    """Pools side by side, or one after the other, that keep the promise together."""

    names: tuple[str, ...]
    """Whom each serves."""
    system: System
    slo: tuple[SloResult, ...]
    """The whole demand on all of them, the spare replicas of every pool gone, in the peak window; every entry kept."""

    @property
    def fleets(self) -> tuple[Sized, ...]:
        """One for each pool."""
        return tuple(part.sized for part in self.system.parts)

    @property
    def price_usd_per_hour(self) -> float:
        """What all of them cost for one hour."""
        return self.system.price_usd_per_hour


def priced_pools(
    question: PlanQuestion,
    trace: Trace,
    one: Sized | None,
    *,
    progress: Progress | None = None,
    replay: Replay | None = None,
) -> PricedPools | None:
    """The cheapest pools of those that the question asks to try, where they cost less than one fleet.

    What a replay of the whole demand on all of them breaks is passed over, and so is what has no room together.

    Args:
        question: With ``splits`` or ``apart``.
        trace: The demand.
        one: The best fleet for everybody; ``None``: none keeps the promise.
        progress: Told what is being tried.
        replay: Runs replays.

    Returns:
        ``None`` where nobody asked for pools, or none cost less.
    """
    traffic = Traffic(trace, workload.peak_window(trace))
    asked = replace(question, splits=(), apart=None)
    replays = Replays.of(asked, replay)
    found = [
        _side_by_side(trial)
        for trial in split_trials(question, trace, one, progress=progress, replay=replay)
        if trial.pools
    ]
    found += _apart(question, traffic, replays, Reporter(progress))
    rooms = ((names, housed_in(system, asked)) for names, system in found)
    roomy = [(names, room[0]) for names, room in rooms if room is not None]
    for names, system in sorted(roomy, key=lambda each: each[1].price_usd_per_hour):
        if one is not None and system.price_usd_per_hour >= one.price_usd_per_hour:
            return None
        verdict = system.judged(replays, traffic)
        if verdict.kept:
            return PricedPools(names=names, system=system, slo=verdict.peak)
    return None


def _side_by_side(trial: SplitTrial) -> tuple[tuple[str, ...], System]:
    names = tuple(pool.name for pool in trial.pools)
    parts = (SizedPool(pool.name, pool.takes, pool.sized, pool.router) for pool in trial.pools)
    return names, System(tuple(parts), None)


def _apart(
    question: PlanQuestion, traffic: Traffic, replays: Replays, reporter: Reporter
) -> Iterator[tuple[tuple[str, ...], System]]:
    answer = sought_apart(question, traffic, stretch(traffic, SEARCH_REQUESTS), replays, reporter)
    if answer is None or answer.found is None or question.apart is None:
        return
    pools = {PREFILL: answer.found.prefill, DECODE: answer.found.decode}
    parts = (SizedPool(name, None, sized_phase(question, pool), replays.router) for name, pool in pools.items())
    handover = handover_of(question, question.apart, answer.found.prefill.replica)
    yield (PREFILL, DECODE), System(tuple(parts), handover)
