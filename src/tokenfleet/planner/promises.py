"""What a promise says before anything is planned: clauses that do not fit each other, and waits that nobody bounds."""

from collections.abc import Iterator

import numpy as np

from tokenfleet.contract import conservative_rank
from tokenfleet.domain.plan import Reason
from tokenfleet.domain.slo import LatencyTarget, Slo
from tokenfleet.domain.trace import Ints, Trace, of_class
from tokenfleet.planner import words


def contradictions(slo: Slo, trace: Trace) -> tuple[Reason, ...]:
    """Clauses of which one makes another say nothing, or that cannot all be used up, class by class.

    A fleet may still keep all of them, by being faster than the looser ones ask; so these are warnings, not reasons to
    refuse. E2E is held against ``TTFT + (output - 1) * gap``, with the mean output and with that of E2E's quantile.
    """
    found: list[Reason] = []
    for name in (None, *(each.name for each in slo.classes)):
        clauses = [target for target in slo.latency if target.traffic_class == name]
        outputs = np.sort(trace.output_tokens[of_class(trace, name)])
        found += [*_sums(clauses, outputs), *_orders(clauses), *_spent(clauses, slo, name)]
    return (*found, *_implied_for_a_part(slo, trace))


def unbounded_wait(slo: Slo, trace: Trace | None = None) -> str | None:
    """A sentence when no clause ends the wait for the first token; ``None`` when one does.

    With the demand, clauses of classes count where no request is outside of them.
    """
    ending = {target.traffic_class for target in slo.latency if target.metric in {"ttft", "e2e"}}
    ending |= {each.traffic_class for each in slo.deadlines}
    if None in ending or (ending and trace is None):
        return None
    if ending and trace is not None:
        outside = int((~np.logical_or.reduce([of_class(trace, name) for name in ending])).sum())
        if not outside:
            return None
        return (
            f"Nothing bounds the wait for the first token of {words.requests(outside)} outside of "
            f"{', '.join(sorted(name for name in ending if name))}: promise ttft or e2e to all, too."
        )
    named = " and ".join(target.name for target in slo.latency) or "the promise"
    return (
        f"Nothing bounds the wait for the first token: {named} begins after it, so an endless queue would count as "
        "kept. Promise ttft or e2e too."
    )


def _sums(clauses: list[LatencyTarget], outputs: Ints) -> Iterator[Reason]:
    firsts = [target for target in clauses if target.metric == "ttft"]
    gaps = [target for target in clauses if target.metric in {"tpot", "itl"}]
    for whole in (target for target in clauses if target.metric == "e2e"):
        # A clause about a quantile below E2E's says nothing about the requests that E2E is judged on.
        first = _strictest(firsts, whole.quantile)
        gap = _strictest(gaps, whole.quantile)
        if first is not None and gap is not None:
            found = _sum(whole, first, gap, outputs)
            if found is not None:
                yield found


def _spent(clauses: list[LatencyTarget], slo: Slo, name: str | None) -> Iterator[Reason]:
    """Limits on the last token that are no shorter than the time within which all must be done."""
    for deadline in slo.deadlines:
        if deadline.traffic_class != name or deadline.within_s is None:
            continue
        for target in clauses:
            if target.metric == "e2e" and target.limit_s >= deadline.within_s and target.quantile <= deadline.quantile:
                yield _says_nothing(target.name, words.seconds(target.limit_s), deadline.name)


def _implied_for_a_part(slo: Slo, trace: Trace) -> Iterator[Reason]:
    """Clauses of a class that one about all requests implies: so few may be late that the class has fewer still."""
    for loose in slo.latency:
        mine = of_class(trace, loose.traffic_class)
        if loose.traffic_class is None or not mine.any():
            continue
        for tight in slo.latency:
            if tight.traffic_class is not None or tight.metric != loose.metric or tight.metric == "itl":
                continue
            late_fraction = (1.0 - tight.quantile) / float(mine.mean())
            if late_fraction <= 1.0 - loose.quantile and tight.limit_s <= loose.limit_s:
                yield _says_nothing(loose.name, words.seconds(loose.limit_s), tight.name)


def _says_nothing(name: str, limit: str, beside: str) -> Reason:
    return Reason(
        kind="contradiction",
        text=f"{name} {limit} says nothing beside {beside}: whoever keeps the second keeps the first.",
        relax=f"leave {name} out, or promise less",
    )


def _strictest(targets: list[LatencyTarget], quantile: float) -> LatencyTarget | None:
    fitting = [target for target in targets if target.quantile >= quantile]
    return min(fitting, key=lambda target: target.limit_s, default=None)


def _sum(whole: LatencyTarget, first: LatencyTarget, gap: LatencyTarget, outputs: Ints) -> Reason | None:
    if not len(outputs):
        return None
    at_quantile = int(outputs[conservative_rank(len(outputs), whole.quantile) - 1])
    percent = f"p{whole.quantile * 100:g}"
    for name, count in (("mean", round(float(outputs.mean()))), (percent, at_quantile)):
        gap_count = max(0, count - 1)
        total_s = first.limit_s + gap_count * gap.limit_s
        # Where the first token alone is too late, the order of the two clauses is what is wrong.
        if gap_count and total_s > whole.limit_s:
            left_s = whole.limit_s - first.limit_s
            mend = f"{whole.name} >= {words.seconds(total_s)}"
            if left_s > 0.0:
                mend += f", or {gap.name} <= {words.seconds(left_s / gap_count)}"
            return Reason(
                kind="contradiction",
                text=(
                    f"{first.name} {words.seconds(first.limit_s)} + {gap_count:,} x {gap.name} "
                    f"{words.seconds(gap.limit_s)} (the {name} output is {words.tokens(count)}) is "
                    f"{words.seconds(total_s)}, which cannot fit {whole.name} {words.seconds(whole.limit_s)}: a "
                    "request that uses up the first two breaks the third."
                ),
                relax=mend,
            )
    return None


def _orders(clauses: list[LatencyTarget]) -> Iterator[Reason]:
    """Clauses that another one implies."""
    for loose in clauses:
        for tight in clauses:
            same = tight.metric == loose.metric
            # The first token comes no later than the last.
            implied = same or (loose.metric == "ttft" and tight.metric == "e2e")
            stronger = tight.quantile > loose.quantile or (not same and tight.quantile >= loose.quantile)
            if implied and stronger and tight.limit_s <= loose.limit_s:
                yield Reason(
                    kind="contradiction",
                    text=(
                        f"{loose.name} {words.seconds(loose.limit_s)} says nothing beside {tight.name} "
                        f"{words.seconds(tight.limit_s)}: whoever keeps the second keeps the first."
                    ),
                    relax=f"leave {loose.name} out, or promise less than {words.seconds(tight.limit_s)}",
                )
