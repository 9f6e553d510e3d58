"""The mistakes people make when they size a fleet, one rule each.

A rule looks at one kind of file and says in a sentence what is wrong, or nothing. Each names the clause of a promise
that the mistake breaks first, and how to mend it.
"""

from collections.abc import Callable
from typing import Final, Literal

from tokenfleet.app import review_scenario
from tokenfleet.app.review_benchmark import closed_loop, fell_behind, impossible
from tokenfleet.app.review_files import Benchmark, PlanFile, Sizing
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.spot import MEND, interruptible_for_online, spot_for_online, waited_for_on_spot
from tokenfleet.domain.records import dataclass

Severity = Literal["mistake", "note"]
"""A ``note`` is a limit of the evidence: true of many honest plans."""
_WAITED_FOR: Final = ("ttft_", "itl_", "tpot_", "e2e_")
"""How the names of clauses begin that promise a latency."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One mistake; ``checks`` by the kind of file it can be found in."""

    id: str
    severity: Severity
    breaks: str
    """The clause that breaks first, and how."""
    mend: str
    scenario: Callable[[Scenario], str | None] | None = None
    plan: Callable[[PlanFile], str | None] | None = None
    sizing: Callable[[Sizing], str | None] | None = None
    benchmark: Callable[[Benchmark], str | None] | None = None


def _when(found: bool, text: str) -> str | None:
    return text if found else None


def _qps(sheet: Sizing) -> str | None:
    per_replica, replicas = sheet.requests_per_s_per_replica, sheet.replica_count
    asked = sheet.peak_requests_per_s or sheet.requests_per_s
    if sheet.input_tokens is not None and sheet.output_tokens is not None:
        return None
    if per_replica is not None:
        return f"{per_replica:g} requests/s per replica, and nobody says how long the requests are"
    return _when(
        asked is not None and replicas is not None,
        f"{replicas} replicas for {asked:g} requests/s, and nobody says how long the requests are" if asked else "",
    )


def _weights(sheet: Sizing) -> str | None:
    return _when(
        sheet.weights_gb is not None and not sheet.kv_cache_gb,
        f"memory holds {sheet.weights_gb:g} GB of weights and no KV cache" if sheet.weights_gb is not None else "",
    )


def _peak_sheet(sheet: Sizing) -> str | None:
    return _when(sheet.throughput_from == "peak_benchmark", "the throughput is a benchmark's best, at any latency")


def _peak_run(run: Benchmark) -> str | None:
    at_once = run.request_rate in ("inf", None) and closed_loop(run) is None
    return _when(at_once, "every request was sent at once: this is the peak, not what holds")


def _no_room_of_plan(made: PlanFile) -> str | None:
    if made.spare_count is None:
        return None
    broken = "; ".join(made.broken_rollouts)
    # A replay without one of them, where the file has it, says more than what was asked for.
    return (None if made.survives_a_replica else review_scenario.no_spare(made.spare_count)) or _when(
        bool(broken), f"the promise breaks while it goes on: {broken}"
    )


def _lengths_of_sheet(sheet: Sizing) -> str | None:
    given = {"input": sheet.input_tokens, "output": sheet.output_tokens}
    bare = [name for name, text in given.items() if text is not None and ":" not in text]
    return _when(bool(bare), f"{' and '.join(bare)} tokens are a mean without a spread")


def _average_of_sheet(sheet: Sizing) -> str | None:
    mean, peak, each = sheet.requests_per_s, sheet.peak_requests_per_s, sheet.requests_per_s_per_replica
    if peak is None:
        return None if mean is None else f"{mean:g} requests/s is an average; the busiest minute is not named"
    if mean is not None and peak <= review_scenario.LEAST_PEAK_TO_MEAN * mean:
        return f"the busiest minute is {peak / mean:.3g} times the mean: real traffic has 1.5 to 5"
    if each is None or sheet.replica_count is None:
        return None
    carrying = sheet.replica_count - (sheet.spare_replica_count or 0)
    return _when(
        carrying * each < peak,
        f"{carrying} replicas that carry {each:g} requests/s each are {carrying * each:g}, and the busiest minute has "
        f"{peak:g}",
    )


def _calm_run(run: Benchmark) -> str | None:
    return _when(
        run.burstiness is not None and run.burstiness >= 1.0 and run.request_rate != "inf",
        "arrivals were Poisson or calmer",
    )


def _median_run(run: Benchmark) -> str | None:
    return _when(run.p99_ttft_ms is None, "the report has no p99 of TTFT")


def _uncapped_sheet(sheet: Sizing) -> str | None:
    return _when(
        sheet.input_limit_tokens is None and sheet.input_tokens is not None,
        "no longest prompt is named, so there is none",
    )


def _contradiction(plan: PlanFile) -> str | None:
    return plan.warnings[0] if plan.warnings else None


def _unsure(plan: PlanFile) -> str | None:
    over = [name for name, promised, high in plan.predicted if high is not None and high > promised]
    return _when(bool(over), f"{' and '.join(over)} broken at the slow end of the error band")


def _few(plan: PlanFile) -> str | None:
    return _when(plan.request_count < 1000, f"{plan.request_count:,} requests: a p99 rests on the slowest few of them")


def _few_run(run: Benchmark) -> str | None:
    return _when(run.completed < 1000, f"{run.completed:,} requests: a p99 rests on the slowest few of them")


def _failed_run(run: Benchmark) -> str | None:
    return _when(run.failed > 0, f"{run.failed:,} requests failed, and the latencies are of those that did not")


def _token_price(sheet: Sizing) -> str | None:
    return _when(
        sheet.usd_per_million_tokens is not None and sheet.usd_per_hour is None,
        "the cost is per million tokens at full load; idle hours and spare replicas are in no line",
    )


def _idle_money(plan: PlanFile) -> str | None:
    waste = plan.unused_fraction
    return _when(
        waste is not None and waste > 0.6,
        f"{waste:.0%} of the bill is headroom, idle time and spare replicas" if waste else "",
    )


def _signal(sheet: Sizing) -> str | None:
    return _when(
        sheet.scale_on == "gpu_utilization",
        "it scales on GPU utilization, which is near 100 % with one long decode and with a full queue alike",
    )


def _unreachable(sheet: Sizing) -> str | None:
    target, top = sheet.scale_target, sheet.scale_signal_max
    return _when(
        target is not None and top is not None and target >= top,
        f"the target {target} lies at or above {top}, the most the signal can show: it never fires",
    )


def _startup(sheet: Sizing) -> str | None:
    start, probe = sheet.cold_start_s, sheet.startup_probe_s
    return _when(
        start is not None and probe is not None and start >= probe,
        f"a replica needs {start:g} s to start and is restarted after {probe:g} s: it never serves"
        if start is not None and probe is not None
        else "",
    )


def _spot_plan(plan: PlanFile) -> str | None:
    waited_for = [name for name, *_ in plan.predicted if name.startswith(_WAITED_FOR)]
    if plan.spot_promised:
        names = " and ".join(plan.spot_promised)
        return f"spot carries {plan.spot_gpu_count:.3g} GPUs on average, and their work has a promise of {names}"
    return waited_for_on_spot(waited_for) if plan.term == "spot" and waited_for else None


def _zone(sheet: Sizing) -> str | None:
    alone = sheet.zone_count == 1 and sheet.gpu_model_count == 1
    return _when(alone, "one zone and one GPU model: that the capacity can be had is not assured")


def _quota(sheet: Sizing) -> str | None:
    most, size, quota = sheet.max_replica_count or sheet.replica_count, sheet.gpus_per_replica, sheet.quota_gpus
    if most is None or size is None or quota is None:
        return None
    what = "has" if sheet.max_replica_count is None else "may scale to"
    return _when(most * size > quota, f"it {what} {most * size} GPUs with a quota of {quota}")


def _shared(sheet: Sizing) -> str | None:
    return _when(
        sheet.engines_per_gpu is not None and sheet.engines_per_gpu > 1 and not sheet.start_in_order,
        "engines that share a GPU start together: each charges the other's memory to itself",
    )


def _drawn(plan: PlanFile) -> str | None:
    return _when(not plan.from_log, "the demand is drawn from statistics, not logged")


def _reference(plan: PlanFile) -> str | None:
    return _when(
        "median provider" in plan.price_source, "the price is the catalog's reference, at which nobody can order"
    )


RULES: Final = (
    Rule(
        id="sized-on-qps",
        severity="mistake",
        breaks="ttft, itl: a request of 50,000 tokens is not one of 500",
        mend="give input and output tokens as MEDIAN:P95",
        sizing=_qps,
    ),
    Rule(
        id="weights-only",
        severity="mistake",
        breaks="ttft: without room for KV requests wait for each other",
        mend="add the KV cache: tokenfleet memory",
        sizing=_weights,
    ),
    Rule(
        id="peak-benchmark",
        severity="mistake",
        breaks="every latency clause: the load that keeps a p99 is far below the peak throughput",
        mend="use the rate sustained within the promise: tokenfleet capacity, or a load test at a fixed rate",
        sizing=_peak_sheet,
        benchmark=_peak_run,
    ),
    Rule(
        id="no-rollout-room",
        severity="mistake",
        breaks="every clause on the day a replica fails or is replaced",
        mend="redundancy: {replicas: n+1}, and rollout: {max_surge: 1, max_unavailable: 0}",
        scenario=review_scenario.no_room,
        plan=_no_room_of_plan,
        sizing=lambda sheet: (
            None if sheet.replica_count is None else review_scenario.no_spare(sheet.spare_replica_count)
        ),
    ),
    Rule(
        id="token-price-only",
        severity="mistake",
        breaks="the budget: the bill is paid by the hour, busy or not",
        mend="compare bills of whole hours with headroom, idle and spare as lines of their own",
        sizing=_token_price,
    ),
    Rule(
        id="mostly-idle",
        severity="note",
        breaks="the budget: the price per token of a busy hour is a fraction of what a token costs",
        mend="share the gpus (tokenfleet pack), scale with the day (tokenfleet scaling), or a smaller gpu",
        plan=_idle_money,
    ),
    Rule(
        id="closed-loop",
        severity="mistake",
        breaks="ttft: users do not wait for each other's answers before they ask",
        mend="send at a fixed rate, without a limit on concurrency or with one that is never reached",
        benchmark=closed_loop,
    ),
    Rule(
        id="fell-behind",
        severity="mistake",
        breaks="ttft and e2e: at this rate the queue grows for ever, and a longer run shows any latency you like",
        mend="measure at a rate that the server keeps up with; what it answers a second is its peak, not what holds",
        benchmark=fell_behind,
    ),
    Rule(
        id="impossible-figures",
        severity="mistake",
        breaks="every clause that rests on this report",
        mend="mend the client (streaming on, its clock, its rate, its connections) and measure again",
        benchmark=impossible,
    ),
    Rule(
        id="no-distribution",
        severity="mistake",
        breaks="ttft, error_rate: the tail of lengths decides a p99 and the memory",
        mend="give MEDIAN:P95, such as 700:1500, or a log",
        scenario=review_scenario.bare_lengths,
        sizing=_lengths_of_sheet,
    ),
    Rule(
        id="average-not-peak",
        severity="mistake",
        breaks="ttft in the busiest minute: the queue that builds there lasts longer than the minute",
        mend="plan for the busiest minute: peak_rate, or a log",
        scenario=review_scenario.average,
        sizing=_average_of_sheet,
    ),
    Rule(
        id="calm-arrivals",
        severity="mistake",
        breaks="ttft: bursts queue where a mean rate does not",
        mend="interarrival_cv: 2, or a log",
        scenario=review_scenario.calm,
        benchmark=_calm_run,
    ),
    Rule(
        id="no-tail-promise",
        severity="mistake",
        breaks="nothing, and that is the mistake: half of all users may wait for any time",
        mend="promise a p95 or p99",
        scenario=review_scenario.median_only,
        benchmark=_median_run,
    ),
    Rule(
        id="endless-queue",
        severity="mistake",
        breaks="nothing: a wait before the first token counts nowhere",
        mend="promise ttft or e2e",
        scenario=review_scenario.endless,
    ),
    Rule(
        id="no-input-cap",
        severity="note",
        breaks="itl and ttft of everybody who shares a replica with the longest prompt",
        mend="engine: {context_limit: ...} at the longest request you mean to serve",
        scenario=review_scenario.uncapped,
        sizing=_uncapped_sheet,
    ),
    Rule(
        id="contradictory-promise",
        severity="mistake",
        breaks="e2e, or a clause that says nothing",
        mend="see the plan's warnings for the limits that fit",
        plan=_contradiction,
    ),
    Rule(
        id="unsure-promise",
        severity="mistake",
        breaks="the clause named, if steps are as slow as the error band allows",
        mend="buy the fleet under `sure` if there is one, or calibrate with three measured points",
        plan=_unsure,
    ),
    Rule(
        id="few-requests",
        severity="note",
        breaks="any p99: it rests on a handful of requests",
        mend="give at least 1,000 requests, better a day",
        plan=_few,
        benchmark=_few_run,
    ),
    Rule(
        id="failures-left-out",
        severity="mistake",
        breaks="error_rate: a server that refuses is fast",
        mend="count failed requests as later than any limit",
        benchmark=_failed_run,
    ),
    Rule(
        id="utilization-signal",
        severity="mistake",
        breaks="ttft: the scaler reacts to the wrong thing, or never",
        mend="scale on queue length per replica (3 to 5), KV use (80 to 85 %) or TTFT",
        sizing=_signal,
    ),
    Rule(
        id="unreachable-signal",
        severity="mistake",
        breaks="ttft: the backlog grows in another metric",
        mend="set the target below the signal's ceiling, or scale on queued requests",
        sizing=_unreachable,
    ),
    Rule(
        id="probe-kills-start",
        severity="mistake",
        breaks="every clause: the replica is restarted for ever",
        mend="startup budget = predicted cold start x 1.5 or more",
        sizing=_startup,
    ),
    Rule(
        id="spot-for-online",
        severity="mistake",
        breaks="every clause when the machines are taken back, all of a kind at once",
        mend=f"{MEND}; buy: {{interruptible: ...}} for such work alone",
        scenario=lambda asked: spot_for_online(asked) or interruptible_for_online(asked),
        plan=_spot_plan,
    ),
    Rule(
        id="single-zone",
        severity="mistake",
        breaks="every clause on the day the zone has no such GPU left",
        mend="name a second zone or GPU model, and a time after which the scaler falls back to it",
        sizing=_zone,
    ),
    Rule(
        id="past-quota",
        severity="mistake",
        breaks="ttft on the day it scales out: the replicas are refused",
        mend="charge the most replicas against the quota before deploying",
        sizing=_quota,
    ),
    Rule(
        id="shared-gpu-start",
        severity="mistake",
        breaks="every clause: the second engine finds no memory",
        mend="give each an absolute KV size in bytes and start them one after the other",
        sizing=_shared,
    ),
    Rule(
        id="drawn-demand",
        severity="note",
        breaks="any clause: your lengths and bursts are not the ones assumed",
        mend="workload: {trace: your log}",
        plan=_drawn,
    ),
    Rule(
        id="reference-price",
        severity="note",
        breaks="the budget",
        mend="prices: {usd_per_gpu_hour: {...}} with what you are charged",
        plan=_reference,
    ),
)
