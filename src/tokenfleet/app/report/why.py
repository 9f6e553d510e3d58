"""Second section: what binds, what binds next, and what the others would have cost."""

from collections.abc import Iterable, Iterator, Sequence

from tokenfleet.app.full_words import first_broken, utilization_lines
from tokenfleet.app.pooled_words import fullness_lines, only
from tokenfleet.app.report.charts import Absent, Chart, Table
from tokenfleet.app.report.decision import promise_name
from tokenfleet.app.report.latency import frontier_charts, load_curves
from tokenfleet.app.report.naming import LIMITS, fleet_name, replica_name
from tokenfleet.app.report.pooled import pools_table
from tokenfleet.app.report.words import amount, exact, measure, measure_range, percent, plural, size, usd
from tokenfleet.domain.plan import LimitUse, Outpriced, Plan, Rejected, Sized
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.rough import Rough
from tokenfleet.planner import why_it_lost

_MOST_LIMITS = 8
"""So many are shown whether a load reached them or not: those of one fleet."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Bar:
    """One limit: the peak against the demand it would allow."""

    name: str
    what: str
    reached: str
    width_percent: float
    """Length of the bar; at 100 the peak is all that the limit allows."""
    runs_out: str
    in_use: str
    role: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Part:
    """One term of the memory of a gpu."""

    name: str
    size: str
    share: str
    width_percent: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Memory:
    """What fills the memory of one gpu."""

    whose: str
    """Pool, of a plan of several; else empty."""
    parts: tuple[Part, ...]
    total: str
    notes: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Why:
    """The second section."""

    sentence: str
    pools: Table | None
    """One row for each pool, of a plan of several."""
    bars: tuple[Bar, ...]
    further: tuple[Bar, ...]
    """Of many limits those that nobody reached, which a person opens."""
    memories: tuple[Memory, ...]
    """Of each kind of replica that is bought."""
    runner_up: str
    others: Table | None
    outpriced: Table | None
    rejected: Table | None
    rules: Table | None
    rules_sentence: str
    anomalies: tuple[str, ...]
    charts: tuple[Chart | Absent, ...]


def explain(plan: Plan, peak_per_s: float) -> Why:
    """Why this is the answer; ``peak_per_s`` are the requests of the judged peak."""
    shown, further = _in_sight(plan.limits)
    return Why(
        sentence=" ".join((_binding_sentence(plan.limits), *_fullness(plan))),
        pools=pools_table(plan),
        bars=tuple(_bar(use, place, peak_per_s) for place, use in enumerate(shown)),
        further=tuple(_bar(use, len(shown) + place, peak_per_s) for place, use in enumerate(further)),
        memories=tuple(_memories(plan)),
        runner_up="" if plan.stages else _runner_up(plan.fleets, plan.runners_up, len(plan.outpriced)),
        others=_others(plan) if plan.runners_up else None,
        outpriced=_outpriced(plan.outpriced),
        rejected=rejected_table(plan.rejected),
        rules=_rules(plan.rough) if plan.rough else None,
        rules_sentence=plan.rough.why if plan.rough else "",
        anomalies=plan.anomalies,
        charts=(*load_curves(plan), *frontier_charts(plan)),
    )


def _fullness(plan: Plan) -> list[str]:
    """What breaks beyond the rate that is sustained, and how full the fleet is, as sentences."""
    told = (*first_broken(plan.limits), *utilization_lines(plan), *fullness_lines(plan.pools))
    return [f"{line[:1].upper()}{line[1:]}." for line in told]


def _rules(rough: Rough) -> Table:
    rows = [
        (figure.name[0].upper() + figure.name[1:], figure.formula, f"{figure.replica_count:.1f}", figure.leaves_out)
        for figure in rough.figures
    ]
    rows.append(("Replay", "keeps the promise at the peak, the spare gone", exact(rough.replayed_count), ""))
    return Table(
        head=("Rule of thumb", "Worked out", "Replicas", "Leaves out"),
        rows=tuple(rows),
        numeric=frozenset({2}),
        caption="What people reckon on paper for the same replicas, beside what replay found",
    )


def rejected_table(rejected: Iterable[Rejected]) -> Table | None:
    """Candidates that cannot serve at any count, or nothing."""
    rows = tuple(
        (each.gpu, each.precision, f"TP{each.tensor_parallel}", " ".join(reason.text for reason in each.reasons))
        for each in rejected
    )
    return Table(head=("GPU", "Precision", "Layout", "Why it cannot serve"), rows=rows) if rows else None


def _outpriced(candidates: tuple[Outpriced, ...]) -> Table | None:
    rows = tuple(
        (
            replica_name(each.replica.deployment),
            f"{usd(each.price.price_usd_per_gpu_hour)} per GPU hour",
            _too_few(each) if each.failed_count else "one replica and the spare already cost more than the choice",
        )
        for each in candidates
    )
    head = ("Candidate", "Price", "The most that would be cheaper than the choice")
    return Table(head=head, rows=rows) if rows else None


def _too_few(candidate: Outpriced) -> str:
    broken = " and ".join(map(promise_name, candidate.broken)) or "a promise"
    by = f", as it is with {candidate.shown_by}, no worse in anything" if candidate.shown_by else ""
    return f"{plural(candidate.failed_count, 'replica')}, and then {broken} is broken{by}"


def _limit_name(use: LimitUse) -> str:
    return LIMITS[use.limit][0]


def _binding_sentence(limits: tuple[LimitUse, ...]) -> str:
    if not limits:
        return "No limit was found at the loads tried."
    first = limits[0]
    whose = f" of {first.pool}" if first.pool else ""
    text = f"{_limit_name(first)}{whose} binds first, at {_runs_out(first)} with the spare gone"
    if len(limits) > 1:
        whose = f" of {limits[1].pool}" if limits[1].pool else ""
        text += f"; next is {_limit_name(limits[1]).lower().replace('kv', 'KV')}{whose}, at "
        text += _runs_out(limits[1])
    return text + "."


def _in_sight(limits: tuple[LimitUse, ...]) -> tuple[tuple[LimitUse, ...], tuple[LimitUse, ...]]:
    """Of many limits, as several pools have, those that some load reached; and the others."""
    if len(limits) <= _MOST_LIMITS:
        return limits, ()
    shown = tuple(use for place, use in enumerate(limits) if place < 2 or not use.at_least)
    return shown, tuple(use for use in limits[2:] if use.at_least)


def _runs_out(use: LimitUse) -> str:
    return f"{'at least ' if use.at_least else ''}{amount(use.rate_at_limit_per_s)} requests/s"


def _bar(use: LimitUse, place: int, peak_per_s: float) -> Bar:
    reached_fraction = peak_per_s / use.rate_at_limit_per_s if use.rate_at_limit_per_s > 0 else 1.0
    name, what = LIMITS[use.limit]
    return Bar(
        name=f"{use.pool}: {name}" if use.pool else name,
        what=what,
        reached=f"{'≤ ' if use.at_least else ''}{percent(reached_fraction)}",
        width_percent=round(min(100.0, reached_fraction * 100), 1),
        runs_out=_runs_out(use),
        in_use=percent(use.used_fraction),
        role=("binds", "next")[place] if place < 2 else "",
    )


def _memories(plan: Plan) -> Iterator[Memory]:
    if plan.chosen is not None:
        yield _memory(plan.chosen, "")
    for pool in plan.pools:
        yield _memory(only(pool), pool.name)


def _memory(sized: Sized, whose: str) -> Memory:
    memory = sized.replica.memory
    close = "The fit is too close to call: it hangs on less than the uncertainty of the runtime's own memory."
    return Memory(
        whose=whose,
        parts=tuple(
            Part(
                name=name.replace("_", " ").replace("kv", "KV"),
                size=size(value),
                share=percent(value / memory.total_bytes),
                width_percent=round(100 * min(1.0, max(0.0, value / memory.total_bytes)), 1),
            )
            for name, value in memory.terms_bytes.items()
        ),
        total=size(memory.total_bytes),
        notes=(*memory.reasons, *((close,) if memory.too_close_to_call else ())),
    )


def _usd(fleets: Sequence[Sized]) -> float:
    return sum(sized.price_usd_per_hour for sized in fleets)


def _more_expensive(bought: Sequence[Sized], other: Sized) -> str:
    difference = other.price_usd_per_hour - _usd(bought)
    if abs(difference) < 0.005:
        return "same price"
    word = "more" if difference > 0 else "less"
    return f"{usd(abs(difference))}/h {word} ({percent(abs(difference) / _usd(bought))})"


def _runner_up(bought: Sequence[Sized], others: tuple[Sized, ...], outpriced_count: int) -> str:
    if not others and outpriced_count:
        tried = plural(outpriced_count, "other candidate")
        return (
            f"There is no runner-up: {tried} broke the promise at about this price, and none of those sized keeps it."
        )
    if not others:
        return "There is no runner-up: no other candidate keeps the promise at any count."
    other = others[0]
    text = f"Runner-up: {fleet_name(other)}, {usd(other.price_usd_per_hour)}/h. It keeps the promise too"
    if other.price_usd_per_hour > _usd(bought) + 0.005:
        return f"{text}, and lost on price: {_more_expensive(bought, other)}."
    return f"{text}, and lost at {why_it_lost(other, bought)}."


def _judged_while_sizing(plan: Plan) -> str:
    """What the latencies of the table are, and what the choice comes to on all of the demand where that differs."""
    text = "Latencies of the peak, the spare gone, as judged while sizing"
    sized = {} if plan.chosen is None else {result.name: result for result in plan.chosen.slo}
    differing = [
        f"{promise_name(result.name)} {measure(result.predicted, result.unit, beside=result.promised)}"
        for result in plan.slo_degraded
        if result.unit == "s" and result.name in sized and sized[result.name].predicted != result.predicted
    ]
    if not differing:
        return text
    return f"{text}, on the busiest stretch of the demand. On all of it the choice has {', '.join(differing)}"


def _others(plan: Plan) -> Table:
    """The choice and every other fleet of one kind; of several pools the table above them says what was chosen."""
    latencies_s = tuple(result for result in plan.slo_degraded if result.unit == "s")
    names = tuple(promise_name(result.name) for result in latencies_s)
    rows = []
    for sized in (*((plan.chosen,) if plan.chosen else ()), *plan.runners_up):
        by_name = {result.name: result for result in sized.slo}
        latencies = []
        for wanted in latencies_s:
            result = by_name.get(wanted.name)
            if result is None or result.predicted is None:
                latencies.append("too few requests to say")
            else:
                latencies.append(
                    measure_range(
                        result.predicted,
                        result.predicted_low,
                        result.predicted_high,
                        result.unit,
                        beside=result.promised,
                    )
                )
        deployment = sized.replica.deployment
        rows.append(
            (
                replica_name(deployment),
                exact(deployment.engine.max_batched_tokens),
                f"{exact(sized.carrying_count)} + {exact(sized.spare_count)}",
                exact(sized.gpu_count),
                f"{usd(sized.price_usd_per_hour)}/h",
                "chosen" if sized is plan.chosen else _more_expensive(plan.fleets, sized),
                *latencies,
            )
        )
    return Table(
        caption=_judged_while_sizing(plan),
        head=("Candidate", "Tokens a step", "Replicas + spare", "GPUs", "Price", "Against the choice", *names),
        rows=tuple(rows),
        numeric=frozenset({1, 2, 3, 4, *range(6, 6 + len(names))}),
    )
