"""First section: what to buy, and whether the promise holds."""

import re
from collections.abc import Iterator

from tokenfleet.app.infeasible_words import nothing_runs
from tokenfleet.app.loss_words import survived
from tokenfleet.app.pooled_words import only, saved
from tokenfleet.app.report.charts import Table
from tokenfleet.app.report.naming import fleet_name
from tokenfleet.app.report.pooled import title_of
from tokenfleet.app.report.words import amount, clock, duration, exact, measure_range, plural, promise, usd
from tokenfleet.app.slo_words import spoken
from tokenfleet.app.summary import run_with, verdict
from tokenfleet.contract import clauses_of
from tokenfleet.domain.plan import Plan, Reason
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.trace import Workload


@dataclass(frozen=True, slots=True, kw_only=True)
class Fact:
    """One number of the decision: what it is, how much, and a line below it."""

    name: str
    value: str
    note: str


@dataclass(frozen=True, slots=True, kw_only=True)
class PromiseRow:
    """One promise against the prediction."""

    name: str
    promised: str
    whole: str
    spare_gone: str
    verdict: str
    mood: str
    """``good``, ``thin``, ``unsure``, ``bad`` or ``open``, for the colour of the verdict."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Decision:
    """The first screen."""

    title: str
    sentence: str
    verdict: str
    mood: str
    run: str
    """Engine and settings to start it with."""
    facts: tuple[Fact, ...]
    promises: tuple[PromiseRow, ...]
    peak: str
    has_spare: bool


@dataclass(frozen=True, slots=True, kw_only=True)
class Infeasible:
    """The first screen when no fleet keeps the promise."""

    title: str
    sentence: str
    change: str
    """What the changes are for."""
    changes: tuple[str, ...]
    """What to relax, the first being the smallest known."""
    reasons: tuple[str, ...]
    promises: Table


def decide(plan: Plan, workload: Workload) -> Decision | Infeasible:
    """The first section of ``plan``."""
    if not plan.fleets:
        return _infeasible(plan)
    rows = tuple(_promise_row(result, _same(plan.slo_whole, result)) for result in plan.slo_degraded)
    said, mood = _verdict(rows, plan)
    return Decision(
        title=f"Buy {fleet_name(plan.chosen) if plan.chosen else title_of(plan)}",
        sentence=_sentence(plan, workload),
        verdict=said,
        mood=mood,
        run="; ".join(_runs(plan)),
        facts=_facts(plan, workload),
        promises=rows,
        peak=peak_text(plan),
        has_spare=plan.spare_count > 0,
    )


def promise_name(name: str) -> str:
    """``ttft_p99`` as ``TTFT p99``, as the summary in the terminal says it."""
    text = spoken(name)
    return text[:1].upper() + text[1:]


def peak_text(plan: Plan) -> str:
    """When the promise was judged."""
    length_s = plan.peak_end_s - plan.peak_start_s
    span = "minute" if abs(length_s - 60.0) < 0.5 else f"{duration(length_s)}"
    return f"the {span} with most tokens, {clock(plan.peak_start_s)} to {clock(plan.peak_end_s)} from the start"


def _runs(plan: Plan) -> Iterator[str]:
    """Engine and settings of every fleet."""
    if plan.chosen is not None:
        yield " ".join(run_with(plan.chosen))
    for pool in plan.pools:
        yield f"{pool.name} on {' '.join(run_with(only(pool)))}"


def _sentence(plan: Plan, workload: Workload) -> str:
    price = f"{usd(plan.price_usd_per_hour or 0.0)} an hour{_price_range(plan)}"
    less = saved(plan)
    gpus = plural(_gpu_count(plan), "GPU")
    sentences = (
        f"{gpus} serve {_models(plan)} for {price}{f', {less}' if less else ''}; {_carry(plan)}.",
        survived(plan),
        f"At the peak {amount(peak_rate_per_s(plan, workload))} requests arrive each second.",
    )
    return " ".join(each for each in sentences if each)


def _models(plan: Plan) -> str:
    """``meta-llama/Llama-3.1-8B-Instruct``, ``meta-llama/Llama-3.1-8B-Instruct and 2 other models``."""
    name = plan.question.model.name
    others = len({pool.plan.question.model.name for pool in plan.pools} - {name})
    return f"{name} and {plural(others, 'other model')}" if others else name


def _carry(plan: Plan) -> str:
    if plan.pools:
        counts = (f"{exact(only(pool).carrying_count)} of {pool.name}" for pool in plan.pools)
        gone = "so the spare ones of each may fail" if plan.spare_count else "so none may fail"
        return f"{' and '.join(counts)} carry the peak alone, {gone}"
    if plan.spare_count:
        carrying = sum(sized.carrying_count for sized in plan.fleets)
        return f"{exact(carrying)} carry the peak alone, so {_may_fail(plan.spare_count)}"
    return "all of them are needed at the peak, so none may fail"


def _gpu_count(plan: Plan) -> int:
    return sum(sized.gpu_count for sized in plan.fleets)


def peak_rate_per_s(plan: Plan, workload: Workload) -> float:
    """Rate in the window that was judged; without one, that of the busiest minute."""
    return plan.peak_rate_per_s or workload.peak_minute_rate_per_s


def _may_fail(count: int) -> str:
    return "1 may fail" if count == 1 else f"{count} may fail at once"


def _ends_usd(plan: Plan) -> tuple[float, float]:
    """The lowest and the highest price of all that is bought, for an hour."""
    low = sum(sized.gpu_count * sized.price_low_usd_per_gpu_hour for sized in plan.fleets)
    return low, sum(sized.gpu_count * sized.price_high_usd_per_gpu_hour for sized in plan.fleets)


def _price_range(plan: Plan) -> str:
    low, high = _ends_usd(plan)
    return f" ({usd(low)} to {usd(high)} by provider)" if low < high else ""


def _facts(plan: Plan, workload: Workload) -> tuple[Fact, ...]:
    low, high = _ends_usd(plan)
    carrying = sum(sized.carrying_count for sized in plan.fleets)
    facts = [
        Fact(
            name="Fleet",
            value=plural(_gpu_count(plan), "GPU"),
            note=f"{exact(carrying)} carrying + {plural(plan.spare_count, 'spare replica')}",
        ),
        Fact(
            name="Price",
            value=f"{usd(plan.price_usd_per_hour or 0.0)}/h",
            note=f"{usd(low)}–{usd(high)}/h by provider" if low < high else "one published price only",
        ),
        Fact(
            name="Peak demand",
            value=f"{amount(peak_rate_per_s(plan, workload))} requests/s",
            note=f"{_densest(plan, workload)}mean {amount(workload.mean_rate_per_s)}{_sustained(plan)}",
        ),
    ]
    if plan.bill and plan.bill.usd_per_request is not None:
        facts.append(
            Fact(name="Per request", value=usd(plan.bill.usd_per_request), note="the whole bill, with what nobody used")
        )
    return tuple(facts)


def _densest(plan: Plan, workload: Workload) -> str:
    """The peak is that of tokens: where long requests make it, it may have fewer requests than the mean."""
    fewer = peak_rate_per_s(plan, workload) < workload.mean_rate_per_s
    return "in the minute with most tokens, of longer requests; " if fewer else ""


def _sustained(plan: Plan) -> str:
    rate_per_s = plan.sustained_rate_per_s
    return "" if rate_per_s is None else f"; without the spare it carries {amount(rate_per_s)}"


def _same(results: tuple[SloResult, ...], wanted: SloResult) -> SloResult | None:
    return next((result for result in results if result.name == wanted.name), None)


def _promise_row(result: SloResult, whole: SloResult | None) -> PromiseRow:
    said, mood = _judged(result)
    return PromiseRow(
        name=promise_name(result.name),
        promised=f"≤ {promise(result.promised, result.unit)}",
        whole=predicted(whole) if whole else "not judged",
        spare_gone=predicted(result),
        verdict=said,
        mood=mood,
    )


def predicted(result: SloResult) -> str:
    """The prediction with its range, or why there is none."""
    if result.predicted is None and result.sample_count:
        return "never: too few requests got an answer"
    if result.predicted is None:
        return f"cannot be said from {plural(result.sample_count, 'sample')}: {_needed(result)} would tell"
    return measure_range(
        result.predicted, result.predicted_low, result.predicted_high, result.unit, beside=result.promised
    )


def _needed(result: SloResult) -> str:
    """What the traffic would have to hold: as many as make a quantile more than the slowest one of them."""
    found = re.search(r"_p(\d+)", result.name)
    count = round(1.0 / (1.0 - int(found[1]) / 10 ** len(found[1]))) if found else 1
    return plural(count, "token gap" if result.name.startswith("itl") else "request")


def _judged(result: SloResult) -> tuple[str, str]:
    if result.predicted is None and not result.sample_count:
        return "not known, so not promised", "open"
    # One rule for what is thin, here and in the terminal.
    text = verdict(result)
    if not result.kept:
        return text, "bad"
    if result.late_at_worst:
        return text, "unsure"
    return text, "good" if text == "kept" else "thin"


def _verdict(rows: tuple[PromiseRow, ...], plan: Plan) -> tuple[str, str]:
    gone = f" with {plural(plan.spare_count, 'replica')} gone" if plan.spare_count else ""
    moods = {row.mood for row in rows}
    if "bad" in moods:
        return f"Promise broken at the peak{gone}", "bad"
    if "open" in moods or not rows:
        return f"Promise kept at the peak{gone} as far as the traffic can show", "open"
    if "unsure" in moods:
        return f"Promise kept at the peak{gone}, unsure: the slow end of the range breaks it", "unsure"
    if "thin" in moods:
        return f"Promise kept at the peak{gone}, but thinly", "thin"
    return f"Promise kept at the peak{gone}", "good"


def _as_many_as(plan: Plan) -> str:
    """How many replicas were too few: as many as one likes, or as room is for."""
    room = plan.question.redundancy
    is_bounded = room.gpu_quota_count is not None or any(zone.gpu_limit_count is not None for zone in room.zones)
    full = is_bounded and any(reason.kind == "redundancy" for reason in plan.reasons)
    return "as many replicas as there are GPUs for" if full else "any number of replicas"


def _infeasible(plan: Plan) -> Infeasible:
    slo = plan.question.slo
    asked = ", ".join(f"{promise_name(name)} ≤ {promise(most, unit)}" for name, unit, most in clauses_of(slo))
    tried = len(plan.question.candidates) + len(plan.question.rejected)
    changes = _changes(plan.reasons)
    title, change = "No fleet keeps this promise", "The smallest change that works"
    sentence = (
        f"Not one of {plural(tried, 'candidate')} serves {plan.question.model.name} within "
        f"{asked or 'the limits asked'}, with {_as_many_as(plan)}."
    )
    if plan.stages:
        title, change = "These pools do not keep this promise", "What they would keep"
        sentence = f"No numbers of replicas that were tried keep {asked or 'the limits asked'}."
    if nothing_runs(plan):
        title, change = "Nothing can be tried as it is asked", "So that one can run"
        sentence = f"Not one of {plural(tried, 'candidate')} can serve {plan.question.model.name}: see why below."
    return Infeasible(
        title=title,
        sentence=sentence,
        change=change,
        changes=changes,
        reasons=tuple(_reason_text(reason) for reason in plan.reasons),
        promises=Table(
            head=("Promise asked for", "Limit"),
            rows=(*((promise_name(name), f"≤ {promise(most, unit)}") for name, unit, most in clauses_of(slo)),),
            numeric=frozenset({1}),
        ),
    )


def _changes(reasons: tuple[Reason, ...]) -> tuple[str, ...]:
    """What would help, each once, in the order given. One ``relax`` may offer several, apart by a wide ``or``."""
    offers = [offer for reason in reasons for offer in re.split(r"\s{2,}or\s{2,}", reason.relax)]
    return tuple(dict.fromkeys(offer.strip() for offer in offers if offer.strip()))


def _reason_text(reason: Reason) -> str:
    return reason.text[:1].upper() + reason.text[1:]
