"""Buys what costs least: one fleet for everybody, or pools that were tried beside it.

Each pool is planned like a fleet, on the requests that come to it, and all of them are proved together on the whole
demand: what that breaks is not bought.
"""

import re
from collections.abc import Callable, Iterator
from dataclasses import replace
from functools import partial

from tokenfleet import workload
from tokenfleet.domain.apart import Apart
from tokenfleet.domain.plan import Plan, PlannedPool, PlanQuestion, SplitTrial
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.survival import Zone
from tokenfleet.domain.trace import Trace
from tokenfleet.domain.ways import Takes
from tokenfleet.planner import joint
from tokenfleet.planner.answer import one_fleet
from tokenfleet.planner.disaggregated import handover_of
from tokenfleet.planner.lodging import crowded, housed, in_zones
from tokenfleet.planner.phases import phase_pools
from tokenfleet.planner.progress import Progress, Reporter
from tokenfleet.planner.quotes import costs_less
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.splits import question_to
from tokenfleet.planner.spread import Replay
from tokenfleet.planner.systems import requests_of_pool
from tokenfleet.planner.together import Planned, Together
from tokenfleet.planner.traffic import Traffic

_ROUNDING = 1e-9
_LONGEST_NAME = 36


@dataclass(frozen=True, slots=True)
class _Offer:
    """Pools that were priced."""

    said: str
    usd_per_hour: float
    planned: Callable[[], "Planned"]


class Buyer:
    """Buys the cheapest of one fleet and the pools that were tried beside it."""

    def __init__(
        self, one: Plan, question: PlanQuestion, trace: Trace, progress: Progress | None, replay: Replay
    ) -> None:
        """Look at what was found.

        Args:
            one: The plan of one fleet, with what came of the pools that were tried.
            question: As it was asked.
            trace: The demand.
            progress: Told what is being tried.
            replay: Runs replays.
        """
        self._one = one
        self._asked = question
        self._question = replace(question, splits=(), apart=None)
        self._traffic = Traffic(trace, workload.peak_window(trace))
        self._progress = progress
        self._replay = replay
        self._replays = Replays.of(question, replay)

    def cheapest(self) -> Plan:
        """The plan to buy; why a cheaper one is not stands among its assumptions."""
        notes: list[str] = []
        for offer in sorted(self._offers(), key=lambda each: each.usd_per_hour):
            planned = offer.planned()
            why_not = self._why_not(planned)
            found = None if why_not else self._proved(planned)
            if found is not None:
                return replace(found, assumptions=(*notes, *found.assumptions))
            why_not = why_not or "together they break the promise in the peak minute of the whole"
            notes.append(f"{offer.said} for ${offer.usd_per_hour:.2f}/h are not bought: {why_not}.")
        return replace(self._one, assumptions=(*self._one.assumptions, *notes))

    def _offers(self) -> Iterator[_Offer]:
        """Everything that costs less than one fleet; nothing where only a part of the demand is looked at."""
        if self._question.first_look or self._question.stands_for_count > 1:
            return
        usual_usd = self._one.price_usd_per_hour
        offers = [self._split(trial) for trial in self._one.splits]
        if self._one.apart is not None and self._one.apart.found is not None:
            found = self._one.apart.found
            said = "Prefill and decode in pools of their own"
            offers.append(_Offer(said, found.price_usd_per_hour, partial(self._phases, found)))
        yield from (
            offer
            for offer in offers
            if offer is not None and (usual_usd is None or costs_less(offer.usd_per_hour, usual_usd))
        )

    def _split(self, trial: SplitTrial) -> _Offer | None:
        usd = trial.price_usd_per_hour
        if usd is None:
            return None
        return _Offer(f"Pools by {trial.by} ({trial.named})", usd, partial(self._side_by_side, trial))

    def _side_by_side(self, trial: SplitTrial) -> Planned:
        """Each pool planned in full, on its own requests; again in its zones where all of them have to share these."""
        zones = self._question.redundancy.zones
        pools = [self._beside(trial, at, zones) for at in range(len(trial.pools))]
        found = housed([joint.of_one_kind(pool) for pool in pools], self._question)
        rooms = [zones] * len(pools) if found is None else [room for _, room in found]
        return Planned(
            tuple(
                pool if room == zones else self._beside(trial, at, room)
                for at, (pool, room) in enumerate(zip(pools, rooms, strict=True))
            )
        )

    def _beside(self, trial: SplitTrial, at: int, zones: tuple[Zone, ...]) -> PlannedPool:
        pool, question = trial.pools[at], in_zones(self._question, zones)
        mine = requests_of_pool(self._traffic.trace, pool.takes)
        return PlannedPool(
            name=_names(trial)[at],
            who=pool.name,
            does="answers",
            takes=pool.takes,
            request_fraction=pool.request_fraction,
            plan=one_fleet(question_to(question, mine), mine, progress=self._progress, replay=self._replay),
        )

    def _phases(self, found: Apart) -> Planned:
        if self._asked.apart is None:
            raise ValueError("two phases were found that nobody asked for")
        handover = handover_of(self._question, self._asked.apart, found.prefill.replica)
        reporter = Reporter(self._progress)
        pools = phase_pools(self._question, self._traffic, found, handover, self._replay, reporter)
        return Planned(pools, handover)

    def _why_not(self, planned: Planned) -> str:
        """What a person asked for that these pools do not keep; empty where they keep all."""
        if not all(pool.plan.fleets for pool in planned.pools):
            return "in zones that they share not each of them keeps what is asked"
        no_room = crowded([part.sized for part in planned.system.parts], self._question)
        if no_room:
            return no_room
        usd, usual_usd = planned.system.price_usd_per_hour, self._one.price_usd_per_hour
        if usual_usd is not None and not costs_less(usd, usual_usd):
            return f"with all that is asked they cost ${usd:.2f}/h"
        factor, cap = joint.load_factor(planned.pools), self._question.utilization_cap_fraction
        if cap is not None and (factor is None or factor * cap < 1.0 - _ROUNDING):
            return "they would be fuller than the utilization cap allows"
        cases = [case for pool in planned.pools for case in pool.plan.losses if case.required]
        if not all(case.kept for case in cases):
            return "they do not survive what may be lost"
        rides = all(case.moment is not None and case.moment.kept for case in cases)
        if self._question.redundancy.ride_through and not rides:
            return "they do not ride through the moment of a loss"
        return ""

    def _proved(self, planned: Planned) -> Plan | None:
        """The plan of these pools; ``None`` where the whole demand on all of them breaks the promise."""
        together = Together(self._asked, self._traffic, self._replays, self._replay, self._progress)
        degraded, whole = together.proofs(planned.system)
        return None if whole is None else together.plan(self._one, planned, degraded, whole)


def _names(trial: SplitTrial) -> list[str]:
    """A word for each pool of a split, as a scenario may call it, no two alike."""
    words = ["short", "long"] if trial.by == "length" else [_word(pool.takes) for pool in trial.pools]
    return [word if words.index(word) == at else f"{word[:_LONGEST_NAME]}-{at + 1}" for at, word in enumerate(words)]


def _word(takes: Takes) -> str:
    said = f"tier-{takes.priority}" if takes.label is None else re.sub(r"[^A-Za-z0-9_-]+", "-", takes.label).strip("-_")
    return said[:_LONGEST_NAME] or "pool"
