"""Pools that cost less than one fleet, priced: what a plan would go on to prove together, without the proof."""

from tokenfleet import workload
from tokenfleet.domain.plan import PlanQuestion, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Trace
from tokenfleet.planner.answer import SEARCH_REQUESTS
from tokenfleet.planner.disaggregated import sought_apart
from tokenfleet.planner.phases import sized_phase
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.splits import split_trials
from tokenfleet.planner.spread import Replay
from tokenfleet.planner.traffic import Traffic, stretch


@dataclass(frozen=True, slots=True)
class PricedPools:
    """Pools side by side, or one after the other, each sized to keep the promise."""

    names: tuple[str, ...]
    """Whom each serves."""
    fleets: tuple[Sized, ...]

    @property
    def price_usd_per_hour(self) -> float:
        """What all of them cost for one hour."""
        return sum(sized.price_usd_per_hour for sized in self.fleets)


def priced_pools(
    question: PlanQuestion,
    trace: Trace,
    one: Sized | None,
    *,
    progress: Progress | None = None,
    replay: Replay | None = None,
) -> PricedPools | None:
    """The cheapest pools of those that the question asks to try, where they cost less than one fleet.

    Args:
        question: With ``splits`` or ``apart``.
        trace: The demand.
        one: The best fleet for everybody; ``None``: none keeps the promise.
        progress: Told what is being tried.
        replay: Runs replays.

    Returns:
        ``None`` where nobody asked for pools, or none cost less.
    """
    found = [
        PricedPools(tuple(pool.name for pool in trial.pools), tuple(pool.sized for pool in trial.pools))
        for trial in split_trials(question, trace, one, progress=progress, replay=replay)
        if trial.pools
    ]
    found += _apart(question, trace, progress, replay)
    best = min(found, key=lambda each: each.price_usd_per_hour, default=None)
    dearer = best is not None and one is not None and best.price_usd_per_hour >= one.price_usd_per_hour
    return None if dearer else best


def _apart(question: PlanQuestion, trace: Trace, progress: Progress | None, replay: Replay | None) -> list[PricedPools]:
    traffic = Traffic(trace, workload.peak_window(trace))
    replays = Replays.of(question, replay)
    answer = sought_apart(question, traffic, stretch(traffic, SEARCH_REQUESTS), replays, Reporter(progress))
    if answer is None or answer.found is None:
        return []
    both = answer.found.prefill, answer.found.decode
    return [PricedPools(("prefill", "decode"), tuple(sized_phase(question, pool) for pool in both))]
