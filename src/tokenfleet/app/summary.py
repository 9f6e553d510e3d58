"""A plan as a person reads it in a terminal: the decision first, then the promise, what binds, money, assumptions.

Returns labelled blocks; how they are coloured and wrapped is the business of the command line.
"""

from collections.abc import Iterator, Sequence
from dataclasses import fields
from typing import Final

from tokenfleet import catalog
from tokenfleet.app.apart_words import apart_lines
from tokenfleet.app.buying_words import dearer_lines, spot_lines
from tokenfleet.app.columns import columns
from tokenfleet.app.full_words import first_broken, rate_at, utilization_lines
from tokenfleet.app.infeasible_words import broken_promises, nothing_runs, rejected_lines
from tokenfleet.app.loss_words import told_losses
from tokenfleet.app.obtaining import obtainable_lines
from tokenfleet.app.outlook_words import likely, nobody_is_sure, sensitive
from tokenfleet.app.pooled_words import fullness_lines, only, saved, who_lines
from tokenfleet.app.quantities import shown_count, shown_duration, shown_rate, shown_usd
from tokenfleet.app.slo_words import shown_value, spoken
from tokenfleet.app.ways_words import ways_lines
from tokenfleet.domain.alternatives import Alternative, Alternatives, Service
from tokenfleet.domain.buying import Purchase
from tokenfleet.domain.plan import Bill, LimitUse, Plan, Sized, TenantInvoice
from tokenfleet.domain.replica import Deployment, Layout
from tokenfleet.domain.rough import Rough
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.trace import Quality, Workload
from tokenfleet.planner import FEW_REQUESTS, why_it_lost

Block = tuple[str, Sequence[str]]

LIMIT_NAMES: Final = {
    "prefill_compute": "prefill compute",
    "decode_bandwidth": "decode bandwidth",
    "kv_memory": "KV memory",
    "sequence_slots": "sequence slots",
    "communication": "communication between GPUs",
    "overhead": "engine overhead",
    "utilization_cap": "the utilization cap",
    "single_request": "the time of a single request",
}
_THIN_FRACTION: Final = 0.9
"""A promise is thin when the upper end of the prediction uses more than this share of it."""
_UNSURE: Final = "kept, unsure"
NOBODY: Final = "too few requests to say"
_MOST_PAYERS: Final = 4


def summary(plan: Plan, workload: Workload, *, brief: bool = False) -> list[Block]:
    """The blocks of a plan, in the order a person decides; ``brief`` for a first look, with fewer assumptions."""
    read = data(workload.quality)
    if not plan.fleets:
        return [*infeasible(plan), *_apart(plan), *_ways(plan), *left_out(plan), *([("Data", read)] if read else [])]
    blocks: list[Block] = [
        *([("Way", [plan.stages])] if plan.stages else []),
        *([("Buy", bought(plan.chosen)), ("Run", run_with(plan.chosen))] if plan.chosen else _pools(plan)),
        ("Promise", [*promised(plan), *_too_few(workload)]),
        *_warned(plan),
        *left_out(plan),
        *_losses(plan),
        *_obtained(plan),
        ("Limit", list(_limited(plan))),
    ]
    if plan.bill is not None:
        blocks.append(("Cost", [*cost(plan.bill), *_payers(plan)]))
    if not brief:
        blocks.append(("Commit", [plan.purchase_missing] if plan.purchase is None else buying(plan.purchase)))
    if plan.alternatives is not None:
        blocks.append(("Instead", instead(plan.alternatives)))
    if read:
        blocks.append(("Data", read))
    if plan.rough is not None and not brief:
        blocks.append(("Rules", rules(plan.rough)))
    if not plan.stages:
        blocks.append(("Second", second(plan.fleets, plan.runners_up, len(plan.outpriced))))
    blocks += [*_apart(plan), *_ways(plan)]
    blocks.append(("Assumed", assumed(plan, workload, brief=brief)))
    return blocks


def _pools(plan: Plan) -> list[Block]:
    """What to buy and to run, pool by pool."""
    gpus = sum(sized.gpu_count for sized in plan.fleets)
    total = f"{len(plan.pools)} pools    {gpus} GPUs    {shown_usd(plan.price_usd_per_hour or 0.0)}/h"
    less = saved(plan)
    bought_lines = [f"{total}, {less}" if less else total, *who_lines(plan)]
    run_lines = []
    for pool in plan.pools:
        bought_lines += _named(pool.name, bought(only(pool)))
        run_lines += _named(pool.name, run_with(only(pool)))
    return [("Buy", bought_lines), ("Run", run_lines)]


def _named(pool: str, lines: Sequence[str]) -> list[str]:
    """Lines of one pool: its name, and what follows below it."""
    first, *others = lines
    return [f"{pool}: {first}", *(f"  {each}" for each in others)]


def _limited(plan: Plan) -> Iterator[str]:
    """What binds and what binds next, and how full it all is."""
    if plan.chosen is not None:
        yield from (*limits(plan.limits, plan.found_within_fraction), *utilization_lines(plan))
        return
    for pool in plan.pools:
        of_pool = pool.plan
        lines = [*limits(of_pool.limits, of_pool.found_within_fraction), *utilization_lines(of_pool)]
        yield from (f"{pool.name}: {line}" for line in lines)
    yield from fullness_lines(plan.pools)


def _apart(plan: Plan) -> list[Block]:
    """Prefill and decode in pools of their own, when somebody asked."""
    return [] if plan.apart is None else [("Apart", apart_lines(plan.apart, plan.one_fleet))]


def _ways(plan: Plan) -> list[Block]:
    """Other routers and other pools, when somebody asked."""
    lines = ways_lines(plan)
    return [("Ways", lines)] if lines else []


def _warned(plan: Plan) -> list[Block]:
    """What is odd about the promise itself."""
    return [("Odd", [f"{each.text} Mend: {each.relax}." for each in plan.warnings])] if plan.warnings else []


def _obtained(plan: Plan) -> list[Block]:
    """Whether the GPUs can be had."""
    lines = [] if plan.obtainable is None else obtainable_lines(plan.obtainable)
    for pool in plan.pools:
        found = pool.plan.obtainable
        lines += [f"{pool.name}: {line}" for line in ([] if found is None else obtainable_lines(found))]
    return [("Obtain", lines)] if lines else []


def _losses(plan: Plan) -> list[Block]:
    """What may be lost; a first look examines no more than it was asked to, and shows it above."""
    return [("Losses", told_losses(plan))] if plan.losses and not plan.question.first_look else []


def left_out(plan: Plan) -> list[Block]:
    """GPUs that were asked for and not compared, as nobody's price for them is known."""
    gpus = [each.gpu for each in plan.rejected if any(reason.kind == "price_missing" for reason in each.reasons)]
    lines = [
        f"Left out {gpu}: no price known; give prices: {{usd_per_gpu_hour: {{{gpu}: ...}}}}"
        for gpu in dict.fromkeys(gpus)
    ]
    return [("Note", lines)] if lines else []


def _too_few(workload: Workload) -> list[str]:
    count = workload.request_count
    return [f"too few requests to speak of p99 ({count})"] if count < FEW_REQUESTS else []


def layout_name(layout: Layout) -> str:
    """``TP2``, ``TP1 DP8 EP8``."""
    more = (("PP", layout.pipeline_parallel), ("DP", layout.attention_data_parallel), ("EP", layout.expert_parallel))
    return " ".join([f"TP{layout.tensor_parallel}", *(f"{name}{count}" for name, count in more if count > 1)])


def replica_name(sized: Sized) -> str:
    """``2 x h100_sxm (TP2, fp8)``."""
    return deployment_name(sized.replica.deployment)


def deployment_name(deployment: Deployment) -> str:
    """The same of a deployment."""
    size = deployment.layout.gpu_count
    gpus = f"{size} x {deployment.gpu}" if size > 1 else deployment.gpu
    kv = f", KV {deployment.kv_precision}" if deployment.kv_precision != "bf16" else ""
    layout = f"{layout_name(deployment.layout)}, " if size > 1 else ""
    precision = "the checkpoint's precision" if deployment.precision == "checkpoint" else deployment.precision
    return f"{gpus} ({layout}{precision}{kv})"


def bought(sized: Sized) -> list[str]:
    """What to buy, how many of it may fail, and for how much."""
    replicas = "1 replica" if sized.replica_count == 1 else f"{sized.replica_count} replicas"
    gpus = "1 GPU" if sized.gpu_count == 1 else f"{sized.gpu_count} GPUs"
    cost = f"{gpus}    {_price(sized)}" if sized.beside is None else f"on the GPUs of {sized.beside}"
    lines = [f"{replicas} of {replica_name(sized)}    {cost}"]
    carry = "1 carries" if sized.carrying_count == 1 else f"{sized.carrying_count} carry"
    spare = f"{sized.spare_count} may fail" if sized.spare_count else "none may fail"
    lines.append(f"{carry} the peak minute, {spare}")
    return lines


def run_with(sized: Sized) -> list[str]:
    """Engine and the settings to start it with; those that are not its own defaults show the default too."""
    engine = sized.replica.deployment.engine
    usual = catalog.engine(engine.name, gpu=catalog.gpu(sized.replica.deployment.gpu))
    changed = [
        f"{field.name} {_setting(getattr(engine, field.name))} (by default {_setting(getattr(usual, field.name))})"
        for field in fields(engine)
        if getattr(engine, field.name) != getattr(usual, field.name)
    ]
    return [f"{engine.name} with {', '.join(changed)}" if changed else f"{engine.name} with its defaults"]


def _setting(value: object) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:,}" if isinstance(value, int) else str(value)


def _price(sized: Sized) -> str:
    low = sized.price_low_usd_per_gpu_hour * sized.gpu_count
    high = sized.price_high_usd_per_gpu_hour * sized.gpu_count
    middle = f"{shown_usd(sized.price_usd_per_hour)}/h"
    if sized.price.source == "scenario":
        return f"{middle}  (your price)"
    if high <= low:
        return f"{middle}  ({sized.price.provider})"
    offers = f"offers {shown_usd(low)}-{shown_usd(high).removeprefix('$')}"
    if sized.price.evidence != "reference":
        return f"{middle}  ({offers})"
    # A reference compares gpus like for like; it is nobody's offer and may lie outside of what is offered.
    price = sized.price_usd_per_hour
    side = (
        " below every offer found, see Assumed"
        if price < low
        else " above every offer found, see Assumed"
        if price > high
        else ""
    )
    return f"{middle}  (reference{side}; {offers})"


def promised(plan: Plan) -> list[str]:
    """Each promise at the peak with the spare replicas gone, in columns."""
    gone = plan.spare_count
    without = {0: "all replicas there", 1: "one replica gone"}.get(gone, f"{gone} replicas gone")
    if plan.pools and gone:
        without = "the spare replicas of every pool gone"
    overall = {result.name: result for result in plan.slo_degraded_overall}
    rows = [_promise_cells(result, overall.get(result.name)) for result in plan.slo_degraded]
    lines = columns(rows)
    if any(row[-1].startswith(_UNSURE) for row in rows):
        lines.append(f"unsure: if the fleet is as slow as the range allows, this promise breaks; {_to_be_sure(plan)}")
    return [f"in the peak minute, {without}:", *lines, *likely(plan)]


def _to_be_sure(plan: Plan) -> str:
    sure = plan.sure
    if plan.sure_pools:
        usd = shown_usd(sum(sized.price_usd_per_hour for sized in plan.sure_pools))
        pools = zip(plan.pools, plan.sure_pools, strict=True)
        counts = " and ".join(f"{sized.replica_count} in {pool.name}" for pool, sized in pools)
        return f"{counts} at {usd}/h would keep it"
    if sure is None:
        return nobody_is_sure(plan)
    usd, step = shown_usd(sure.price_usd_per_hour), sure.replica.deployment.engine.max_batched_tokens
    return (
        f"{sure.replica_count} replicas of {replica_name(sure)} with steps of {step:,} tokens at {usd}/h would keep it"
    )


def _promise_cells(result: SloResult, overall: SloResult | None) -> tuple[str, ...]:
    """Where nobody it falls on arrives in the peak, all requests decide, and are shown."""
    when = ""
    if not result.sample_count and overall is not None and overall.predicted is not None:
        result, when = overall, "; over the whole trace, nobody of it arrives in the peak"
    name, limit = spoken(result.name), f"of {_amount(result, result.promised)}"
    if result.predicted is None:
        known = ("never", "", limit, verdict(result)) if result.sample_count else ("not known", "", limit, NOBODY)
        return name, *known
    low, high = result.predicted_low, result.predicted_high
    band = ""
    if low is not None and (high is None or low < high):
        band = f"({_amount(result, low)} to {'never' if high is None else _amount(result, high)})"
    return name, _amount(result, result.predicted), band, limit, f"{verdict(result)}{when}"


def verdict(result: SloResult) -> str:
    """In a word: kept; thin when the range comes near the promise, unsure when it goes past it; broken."""
    if not result.kept:
        return "broken"
    if result.late_at_worst:
        return _UNSURE
    if result.predicted_high is not None and result.predicted_high > _THIN_FRACTION * result.promised:
        return "kept, thin"
    return "kept"


def _amount(result: SloResult, value: float) -> str:
    if result.unit == "fraction":
        return f"{value * 100:{'.2g' if value < 0.095 else '.0f'}} %" if value else "0 %"
    return shown_value(result.unit, value)


def data(quality: Quality) -> list[str]:
    """What reading a log left out and what it found odd; nothing when the demand was drawn."""
    dropped = [f"{count:,} {reason.replace('_', ' ')}" for reason, count in quality.rows_dropped.items() if count]
    lines = []
    if quality.detected.get("format") != "drawn":
        left_out = f"; left out: {', '.join(dropped)}" if dropped else ""
        lines.append(f"{quality.rows_kept:,} of {quality.rows_read:,} rows used{left_out}")
    return [*lines, *quality.warnings]


def limits(uses: Sequence[LimitUse], within_fraction: float | None) -> list[str]:
    """What binds, and what binds next."""
    if not uses:
        return ["not sought" if within_fraction is None else "no limit found below the loads tried"]
    first = uses[0]
    text = f"{LIMIT_NAMES[first.limit]} at {rate_at(first)} requests/s in the peak minute"
    if len(uses) > 1:
        text += f"; next: {LIMIT_NAMES[uses[1].limit]} at {rate_at(uses[1])}"
    if within_fraction is not None:
        text += f" (rates to {within_fraction * 100:.0f} %)"
    return [text, *first_broken(uses)]


def buying(found: Purchase) -> list[str]:
    """How to buy if the fleet follows the demand, and when a commitment pays."""
    taken = [line for line in found.lines if line.mean_gpu_count]
    shown = [f"{line.mean_gpu_count:.3g} GPUs {line.name.replace('_', ' ')}" for line in taken]
    hours = f"the {found.hour_count} hours {'described' if found.described else 'of the trace'}"
    lines = [
        f"if the fleet follows {hours}: {', '.join(shown)} on average, {shown_usd(found.total_usd_per_hour)}/h",
        f"{shown_usd(found.all_on_demand_usd_per_hour)}/h if all of it is rented; reckoned, not replayed",
    ]
    if found.commit_from_fraction is not None:
        lines.append(f"commit to what is needed {found.commit_from_fraction:.0%} of the hours or more")
    lines += [*spot_lines(found), *dearer_lines(found)]
    if found.unknown_terms:
        lines.append(f"no published price: {', '.join(found.unknown_terms)}; give yours under buy")
    return lines


def instead(found: Alternatives) -> list[str]:
    """What a month costs otherwise, where that would pay, and what a unit of work costs here."""
    return (
        [f"{way.name}: {_way(way)}" for way in found.ways]
        + [f"{shown_usd(unit.cost_usd)} {unit.name}" for unit in found.units]
        + ([] if found.service is None else _whole_service(found.service))
    )


def _whole_service(found: Service) -> list[str]:
    """A month of the fleet and everything beside it."""
    named = [
        f"{line.name.replace('_', ' ')} {'?' if line.usd_per_month is None else shown_usd(line.usd_per_month)}"
        for line in found.lines
    ]
    total = found.total_usd_per_month
    sums = f"{shown_usd(found.known_usd_per_month)} and what {', '.join(found.unknown)} cost"
    if total is not None:
        request = "" if found.usd_per_request is None else f", {shown_usd(found.usd_per_request)} a request"
        sums = f"{shown_usd(total)} a month{request}"
    lines = [f"the whole service: {' + '.join(named)} = {sums}"]
    if found.unsaid:
        lines.append(f"nobody said what these cost: {', '.join(name.replace('_', ' ') for name in found.unsaid)}")
    return lines


def _way(way: Alternative) -> str:
    if way.usd_per_month is None:
        return f"not known, {way.note}"
    even = ""
    if way.break_even_tokens_per_month is not None:
        even = f"; hosting wins from {shown_count(way.break_even_tokens_per_month)} tokens a month"
    if way.break_even_utilization_fraction is not None:
        busy = f"{way.break_even_utilization_fraction:.0%}"
        even += f", {busy} of what the fleet sustains" if even else f"; wins from {busy} busy"
    return f"{shown_usd(way.usd_per_month)} a month ({way.note}){even}"


def rules(rough: Rough) -> list[str]:
    """What rules of thumb say, and why replay says otherwise."""
    told = [f"{figure.name} {figure.replica_count:.1f}" for figure in rough.figures]
    return [f"replicas by formula: {', '.join(told)}", rough.why]


def cost(bill: Bill) -> list[str]:
    """The bill of an hour, whose lines add up, and what a token and a request cost."""
    parts = [
        _part(bill.input_usd_per_hour, "input", bill.usd_per_million_input_tokens),
        _part(bill.cached_usd_per_hour, "cached", bill.usd_per_million_cached_tokens),
        _part(bill.output_usd_per_hour, "output", bill.usd_per_million_output_tokens),
        _part(bill.headroom_usd_per_hour, "headroom", None),
        _part(bill.idle_usd_per_hour, "idle", None),
        _part(bill.spare_usd_per_hour, "spare", None),
    ]
    split = f"{shown_usd(bill.total_usd_per_hour)}/h = {' + '.join(part for part in parts if part)}"
    lines = [split]
    whole = []
    if bill.usd_per_request is not None:
        whole.append(f"{shown_usd(bill.usd_per_request)} per request")
    if bill.usd_per_million_output_tokens_loaded is not None:
        whole.append(
            f"{shown_usd(bill.usd_per_million_output_tokens_loaded)} per million output tokens if they pay for all"
        )
    if whole:
        lines.append("; ".join(whole))
    return lines


def _payers(plan: Plan) -> list[str]:
    """Who pays most of a month, everything included: by tenant, label, model and class."""
    every = (*([plan.invoice] if plan.invoice else []), *plan.invoices)
    return [line for invoice in every for line in _paid_by(invoice)]


def _paid_by(invoice: TenantInvoice) -> list[str]:
    by = "" if invoice.by == "tenant" else f" by {invoice.by}"
    shown = [f"{each.tenant} {shown_usd(each.loaded_usd)}" for each in invoice.tenants[:_MOST_PAYERS]]
    more = len(invoice.tenants) - len(shown)
    others = f" and {more:,} other{'s' if more > 1 else ''}" if more > 0 else ""
    return [f"a month {shown_usd(invoice.total_usd)}{by}: {', '.join(shown)}{others}"]


def _part(usd_per_hour: float, name: str, per_million: float | None) -> str:
    if usd_per_hour <= 0:
        return ""
    price = f" ({shown_usd(per_million)}/M tokens)" if per_million is not None else ""
    return f"{shown_usd(usd_per_hour)} {name}{price}"


def second(bought: Sequence[Sized], runners_up: Sequence[Sized], outpriced_count: int) -> list[str]:
    """The runner-up, which is one fleet, and why it lost."""
    if not runners_up:
        near = " at a price near this one" if outpriced_count else ""
        return [f"no other candidate keeps the promise{near}"]
    other = runners_up[0]
    replicas = "1 replica" if other.replica_count == 1 else f"{other.replica_count} replicas"
    return [
        f"{replicas} of {replica_name(other)}    {shown_usd(other.price_usd_per_hour)}/h",
        f"lost: {why_it_lost(other, bought)}",
    ]


def assumed(plan: Plan, workload: Workload, *, brief: bool) -> list[str]:
    """The demand planned for, then what the plan takes for granted; ``brief`` keeps what moves the answer most."""
    lengths = ", ".join(
        f"{name} {shown_count(each.p50)} / {shown_count(each.p95)} / {shown_count(each.max)}"
        for name, each in (("input", workload.input_tokens), ("output", workload.output_tokens))
    )
    lines = [_demanded(workload), f"tokens p50 / p95 / longest: {lengths}"]
    if not brief or plan.chosen is None:
        return [*lines, *sensitive(plan), *plan.assumptions]
    band = plan.chosen.replica.band.step_time_factor
    source = [text for text in plan.assumptions if text.startswith("Demand")]
    return [
        *lines,
        *source,
        f"step times right within a factor of {band:.2g}; --json lists every assumption",
    ]


def _demanded(workload: Workload) -> str:
    """How many requests, in how long; one alone has neither span nor rate."""
    if workload.request_count == 1:
        return "1 request"
    return (
        f"{workload.request_count:,} requests in {_span(workload.duration_s)}, "
        f"{shown_rate(workload.mean_rate_per_s)}/s on average, "
        f"{shown_rate(workload.peak_minute_rate_per_s)}/s in the busiest minute"
    )


def _span(duration_s: float) -> str:
    """A trace ends with its last request, a hair before the minute it was drawn for."""
    minutes = round(duration_s / 60.0)
    near = minutes > 0 and abs(duration_s - minutes * 60.0) < 2.0
    return shown_duration(minutes * 60.0 if near else duration_s)


def infeasible(plan: Plan) -> list[Block]:
    """Why no fleet keeps the promise, and the smallest change that would."""
    reasons = list(dict.fromkeys(reason.text for reason in plan.reasons))
    offers = (offer for reason in plan.reasons for offer in reason.relax.split("   or   ") if offer)
    relaxed = list(dict.fromkeys(offers))
    answer, change = f"no fleet keeps {broken_promises(plan)}", "smallest that works"
    if plan.stages:
        answer, change = f"no numbers of replicas in these pools keep {broken_promises(plan)}", "they would keep"
    if nothing_runs(plan):
        answer, change = "nothing can be tried as it is asked, so the promise was not looked at", "so that one can run"
    blocks: list[Block] = [
        ("Answer", [answer]),
        ("Why", reasons or ["no candidate is left"]),
    ]
    blocks += _warned(plan)
    if relaxed:
        first, *others = relaxed
        blocks.append(("Change", [f"{change}: {first}", *(f"or  {each}" for each in others)]))
    if plan.rejected:
        blocks.append(("Tried", rejected_lines(plan.rejected)))
    return blocks
