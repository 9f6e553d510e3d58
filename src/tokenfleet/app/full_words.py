"""How full a fleet is, and what breaks when it is fuller, in words for the terminal and the report."""

from collections.abc import Sequence
from math import inf

from tokenfleet.app.quantities import shown_duration, shown_rate
from tokenfleet.app.slo_words import spoken
from tokenfleet.domain.plan import LimitUse, Plan

_MINUTE_S = 60.0


def rate_at(use: LimitUse) -> str:
    """Requests per second at which a limit binds: ``84.9``, ``110 or more``."""
    return shown_rate(use.rate_at_limit_per_s) + (" or more" if use.at_least else "")


def first_broken(uses: Sequence[LimitUse]) -> list[str]:
    """Which clauses break first beyond the rate that is sustained."""
    use = next((use for use in uses if use.broken), None)
    if use is None:
        return []
    breaks = "breaks" if len(use.broken) == 1 else "break"
    return [f"beyond {rate_at(use)} requests/s {' and '.join(map(spoken, use.broken))} {breaks} first"]


def utilization_lines(plan: Plan) -> list[str]:
    """How full the fleet is, where a load was found that it does not sustain, and what the promise leaves of it."""
    carrying, whole = plan.utilization_carrying_fraction, plan.utilization_fraction
    if carrying is None or whole is None or not plan.limits or plan.limits[0].at_least:
        return []
    gone = f" ({carrying * 100:.0f} % with the spare gone)" if plan.spare_count else ""
    mean = plan.utilization_mean_fraction
    usual = "" if mean is None else f", the mean {mean * 100:.0f} %"
    if mean is not None and mean > whole:
        usual += " (the peak is that of tokens, and has fewer requests)"
    window_s = plan.peak_end_s - plan.peak_start_s
    judged = shown_rate(plan.peak_rate_per_s)
    # Where requests are few the window is longer than the busiest minute, and thinner.
    peak = f"the peak, {judged} requests/s over {shown_duration(window_s)}," if window_s > _MINUTE_S else "the peak"
    lines = [f"{peak} is {whole * 100:.0f} % of the load that the fleet sustains within the promise{gone}{usual}"]
    left = plan.promise_leaves_fraction
    return lines if left is None else [*lines, _left_line(plan, left)]


def _left_line(plan: Plan, left_fraction: float) -> str:
    """What the promise leaves, and what becomes of a peak that is more than full replicas get through."""
    full = f"{shown_rate(plan.saturated_rate_per_s or 0.0)} requests/s that a queue that never empties allows"
    share = "all" if left_fraction == 1.0 else f"{left_fraction * 100:.0f} %"
    said = f"the promise leaves {share} of the {full}"
    if left_fraction < 1.0 and plan.question.slo.latency:
        said += ": replicas must be free when somebody comes"
    if plan.peak_rate_per_s > (plan.saturated_rate_per_s or inf):
        said += "; more comes at the peak, and waits"
    return said
