"""A plan of several pools as a person reads it: who gets what, how full each pool is and why, what it saves."""

from collections.abc import Iterator, Sequence
from math import inf, log

from tokenfleet.app.quantities import shown_usd
from tokenfleet.domain.plan import Plan, PlannedPool, Sized
from tokenfleet.domain.records import dataclass


def only(pool: PlannedPool) -> Sized:
    """The equal replicas of a pool."""
    (sized,) = pool.plan.fleets
    return sized


def who_lines(plan: Plan) -> Iterator[str]:
    """Whom each pool serves: ``short: prompts up to 2,000 tokens, 75 % of the requests``."""
    for pool in plan.pools:
        who = whom(plan, pool)
        if pool.takes is not None or pool.request_fraction < 1.0:
            who.append(f"{_percent(pool.request_fraction)} of the requests")
        router = pool.plan.question.router
        behind = "" if router == plan.question.router else f"; router {router}"
        yield f"{pool.name}: {', '.join(who)}{behind}"
    if plan.handover is not None:
        yield f"KV crosses {plan.handover.link.name}; the user's first token is the {plan.handover.first_token} pool's"


def whom(plan: Plan, pool: PlannedPool) -> list[str]:
    """The model of a pool where it is not that of all, and whom it serves where its name does not say so."""
    model = pool.plan.question.model.name
    return [
        *([] if model == plan.question.model.name else [model]),
        *([] if pool.who == pool.name else [pool.who]),
    ]


def saved(plan: Plan) -> str:
    """``37 % less than the best fleet of one pool``; empty where none keeps the promise."""
    usd = plan.price_usd_per_hour
    if not plan.pools or not plan.runners_up or usd is None:
        return ""
    share = 1.0 - usd / plan.runners_up[0].price_usd_per_hour
    less = f"{share * 100:.0f} %" if share >= 0.005 else shown_usd(plan.runners_up[0].price_usd_per_hour - usd)
    return f"{less} less than the best fleet of one pool"


# ---- how full, and why some are fuller


@dataclass(frozen=True, slots=True)
class Fullness:
    """What is left of what a pool could do with a queue that never empties, factor by factor."""

    name: str
    promise_ratio: float
    """Above 1 where work may wait: it keeps its promise at peaks that it does not get through while they last."""
    whole_fraction: float
    carrying_fraction: float

    @property
    def asked_ratio(self) -> float:
        """Peak rate over the saturated rate of all its replicas; above 1 what is more waits."""
        return self.promise_ratio * self.whole_fraction * self.carrying_fraction

    @property
    def peak_fraction(self) -> float:
        """How full it is at the peak."""
        return min(1.0, self.asked_ratio)


def fullness(pool: PlannedPool) -> Fullness | None:
    """How full a pool is at its peak; ``None`` where what it sustains is not known."""
    sized, asked, taken = only(pool), pool.plan.peak_to_saturated_ratio, pool.plan.utilization_carrying_fraction
    if asked is None or taken is None:
        return None
    carrying = sized.carrying_count / sized.replica_count
    if pool.plan.limits and pool.plan.limits[0].at_least:
        # It sustains more than any load asked of it, so what its promise leaves is not known, but where more is asked
        # than it gets done.
        taken = min(1.0, asked / carrying)
    return Fullness(pool.name, asked / carrying / taken, taken, carrying)


def fullness_lines(pools: Sequence[PlannedPool]) -> list[str]:
    """How full each pool is, and what makes the emptiest of them emptier than the fullest."""
    known = [each for each in map(fullness, pools) if each is not None]
    said = [f"{each.name} {_percent(each.peak_fraction)}{waiting(each.asked_ratio)}" for each in known]
    if not said:
        return []
    lines = [f"at the peak {', '.join(said)} of what all its replicas could do with a queue that never empties"]
    emptiest, fullest = (pick(known, key=lambda one: one.peak_fraction) for pick in (min, max))
    if len(known) > 1 and emptiest.peak_fraction < fullest.peak_fraction:
        lines.append(f"{emptiest.name} is emptier than {fullest.name}: {_why_emptier(emptiest, fullest)}")
    return lines


def waiting(asked_ratio: float) -> str:
    """What becomes of a peak that is more than full replicas get done; empty where it is not more.

    Args:
        asked_ratio: What is asked at the peak over what all replicas could do with a queue that never empties.
    """
    return f" (asked for {asked_ratio:.1f} times as much, which waits)" if asked_ratio >= 1.05 else ""


def _why_emptier(emptiest: Fullness, fullest: Fullness) -> str:
    """The factor in which two pools differ most."""
    can_wait = fullest.promise_ratio > 1.0
    needs_room = " and the other's {theirs}, as replicas must be free when somebody comes"
    other = ", and the work of the other can wait" if can_wait else needs_room
    reasons = (
        (
            emptiest.promise_ratio,
            fullest.promise_ratio,
            f"its promise leaves {{mine}} of that{other}",
        ),
        (
            emptiest.whole_fraction,
            fullest.whole_fraction,
            "replicas come whole, and {mine} of what its own sustain is asked for where the other has {theirs}",
        ),
        (
            emptiest.carrying_fraction,
            fullest.carrying_fraction,
            "spare ones weigh more in a small pool, where {mine} of the replicas carry and {theirs} of the other's",
        ),
    )
    mine, theirs, said = max(reasons, key=lambda each: log(each[1] / each[0]) if each[0] > 0.0 else inf)
    return said.format(mine=_percent(min(1.0, mine)), theirs=_percent(min(1.0, theirs)))


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.0f} %"
