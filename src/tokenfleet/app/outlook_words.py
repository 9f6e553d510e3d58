"""How likely a plan holds, and what it would have to be if an assumption is wrong, as a person reads it."""

from tokenfleet.app.quantities import shown_usd
from tokenfleet.domain.outlook import SensitivityCase
from tokenfleet.domain.plan import Plan
from tokenfleet.planner.assumed import FIRST_TOKEN_UNSURE
from tokenfleet.planner.counting import MOST_TIMES


def likely(plan: Plan) -> list[str]:
    """The probability that the promise holds, where one is known."""
    found, said = plan.confidence, chance(plan)
    if found is None:
        return []
    until = "even at" if found.at_least else "up to"
    return [
        f"likely to hold: {said}, if step times are all that is wrong (kept {until} "
        f"{found.breaking_step_factor:.2f} times the predicted step)"
    ]


def chance(plan: Plan) -> str | None:
    """``71.4 %``, ``more than 99.9 %``; ``None`` where no probability is known."""
    found = plan.confidence
    if found is None:
        return None
    share = f"{min(found.probability_fraction, 0.999):.1%}".replace(".0%", "%").replace("%", " %")
    return f"more than {share}" if found.at_least or found.probability_fraction > 0.999 else share


def sensitive(plan: Plan) -> list[str]:
    """What the fleet would have to be if an assumption is wrong, those that change it only."""
    told = []
    planned = tuple(sized.replica_count for sized in plan.fleets)
    for case in plan.sensitivity:
        if case.note:
            told.append(f"{case.assumption} {case.change}: {case.note}")
        if case.assumption == "price" or (case.pool_replica_count or (case.replica_count,)) == planned:
            continue
        need = "another fleet" if case.replica_count is None else f"{_counts(case)} replicas"
        cost = "" if case.price_usd_per_hour is None else f" ({shown_usd(case.price_usd_per_hour)}/h)"
        told.append(f"{case.assumption} {case.change}: {need}{cost}")
    return [f"if wrong: {'; '.join(told)}"] if told else []


def nobody_is_sure(plan: Plan) -> str:
    """Why no replicas are named that would make sure: what slow steps ask for is not enough for a first token."""
    if plan.question.first_look:
        return "tokenfleet plan says what would make sure"
    slow = next((case for case in plan.sensitivity if case.is_slow_end), None)
    if slow is not None and slow.replica_count is not None:
        count = "1 replica" if slow.replica_count == 1 else f"{_counts(slow)} replicas"
        cost = "" if slow.price_usd_per_hour is None else f" at {shown_usd(slow.price_usd_per_hour)}/h"
        return f"{count}{cost} would keep it if only steps are slow, but {FIRST_TOKEN_UNSURE}"
    if plan.pools:
        return "no numbers of these replicas would make sure of all pools"
    return f"no fleet of such replicas at up to {MOST_TIMES} times the price would make sure"


def _counts(case: SensitivityCase) -> str:
    """``7``, or ``3 + 4`` pool by pool."""
    return " + ".join(map(str, case.pool_replica_count or (case.replica_count,)))
