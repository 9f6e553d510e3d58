"""Why no fleet keeps a promise, as a person reads it."""

from collections.abc import Sequence
from typing import Final

from tokenfleet.app.quantities import written_duration
from tokenfleet.domain.plan import Plan, Reason, Rejected

_MOST_REJECTED: Final = 6


def nothing_runs(plan: Plan) -> bool:
    """No candidate got as far as the promise: none can run as it is asked, or none has a price."""
    kinds = {reason.kind for reason in plan.reasons}
    return not plan.question.candidates or kinds == {"price_missing"}


def broken_promises(plan: Plan) -> str:
    """The clauses that no fleet keeps: ``ttft_p99 = 5ms``."""
    clauses = {reason.clause for reason in plan.reasons}
    named = [
        f"{target.name} = {written_duration(target.limit_s)}"
        for target in plan.question.slo.latency
        if target.name in clauses
    ]
    return " and ".join(named) or "this promise"


def rejected_lines(rejected: Sequence[Rejected]) -> list[str]:
    """One line for each gpu and reason: eight layouts without a price are said once."""
    grouped: dict[tuple[str, str], list[Rejected]] = {}
    for each in rejected:
        grouped.setdefault((each.gpu, _first(each.reasons)), []).append(each)
    lines = [f"{gpu} {_which(same)}: {text}" for (gpu, text), same in grouped.items()]
    more = len(lines) - _MOST_REJECTED
    return lines[:_MOST_REJECTED] + ([f"and {more} more, see plan.json"] if more > 0 else [])


def _which(same: Sequence[Rejected]) -> str:
    if len(same) > 2:
        return f"in {len(same)} ways"
    return " and ".join(f"TP{each.tensor_parallel} {each.precision}" for each in same)


def _first(reasons: Sequence[Reason]) -> str:
    return reasons[0].text if reasons else "no reason given"
