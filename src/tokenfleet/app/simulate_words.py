"""A simulation as a person reads it: the diagnosis first, then what it rests on."""

from collections.abc import Collection, Mapping, Sequence
from typing import Final, Protocol

from tokenfleet.app.columns import columns
from tokenfleet.app.ending_words import ending_words
from tokenfleet.app.lane_words import lane_lines
from tokenfleet.app.quantities import shown_count, shown_duration, shown_rate
from tokenfleet.app.scaling_words import ladder_lines, scaling_lines
from tokenfleet.app.simulate_document import QUANTILES, latencies, replica_rows
from tokenfleet.app.simulate_run import Judged, Simulated, Window, goodput
from tokenfleet.app.slo_words import shown_value, spoken
from tokenfleet.app.summary import NOBODY, data, layout_name, verdict
from tokenfleet.app.world_words import reading_lines, world_lines
from tokenfleet.contract import Against, Diagnosis, DiagnosisLimits, Fairness
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.replica import EngineSettings
from tokenfleet.domain.run import Decision, RunRecord, Status
from tokenfleet.domain.slo import Slo, SloResult
from tokenfleet.domain.trace import Bools

Block = tuple[str, Sequence[str]]
_MOST_REPLICAS: Final = 8
_LONG_TAIL: Final = 3.0
"""The slowest gaps are worth a word from this multiple of the middle one on."""
_SLOWED: Final = 1.05
"""A slowdown worth a word."""
_BEHIND: Final = 8
"""A queue so many times that of any other replica is its own affair."""
_RATES: Final = ("error_rate", "rejection_rate")
_BURSTS: Final = 0.4
"""Below this share of the work, prefill cannot be the limit all the time."""
_VERDICTS: Final = {
    "fine": "fine: neither first tokens nor token gaps are slower than an engine with company takes",
    "prefill": "prefill is saturated: first tokens wait for prompts to be computed",
    "decode": "decode is saturated: token gaps are long because many sequences share each step",
    "prefill_and_decode": "prefill and decode are saturated: both phases wait for each other's share of the GPU",
    "shared_steps": "token gaps are long because most steps compute prompts, too; first tokens are in time",
    "kv": "KV memory is full: requests wait for room while compute is not the limit",
    "sequence_slots": "every sequence slot is taken: requests wait though KV memory has room",
    "front_end": "the front end is the limit: requests wait for the CPU before the scheduler knows of them",
    "client": "the fleet is fine, the client is not: clients saw far more time than the fleet took",
    "unknown": "unknown: no request got an answer",
}
_MENDS: Final = {
    "prefill": "More replicas, more tensor parallelism, a warmer prefix cache or shorter prompts help.",
    "decode": "More replicas help, or GPUs with more memory bandwidth.",
    "prefill_and_decode": "More replicas help.",
    "shared_steps": "A smaller max_batched_tokens (SGLang: a prefill_decode_interval) shortens the gaps as far as TTFT "
    "allows, then more replicas; more memory bandwidth does not.",
    "kv": "More GPU memory per replica, an fp8 KV cache or more replicas help; more compute does not.",
    "sequence_slots": "A larger max_sequence_count helps as far as ITL allows, then more replicas.",
    "front_end": "More API server processes per replica or more replicas help; a faster GPU does not.",
    "client": "Look at tokenizers and API servers (CPU), proxies, the network, and clients that read slowly.",
}
_ONLY_BATCH: Final = "unknown: all requests are batch, and nobody waits for those."
_READERS_FULL: Final = "the fleet is saturated: requests wait for those before them."
"""Prefill is, where nothing is generated."""
NO_TOKENS: Final = "No request generates anything, so none has a first token or a gap: promise e2e instead."
REFUSED: Final = {
    "rejected_too_long": "longer than a replica takes (context limit, KV memory or, without chunked prefill, a step)",
    "rejected_queue_full": "found every queue full",
    "rejected_nobody_ready": "found no replica ready",
    "rejected_batch_shed": "were batch while batch was shed",
    "rejected_quota_spent": "had spent their tenant's quota",
    "rejected_new_session": "would have opened a session",
    "rejected_context_cap": "declared more than the cap on context",
    "rejected_output_cap": "declared more than the cap on output",
    "rejected_deadline": "waited until the deadline",
}


def fleet_name(group: ReplicaGroup) -> str:
    """``2 replicas of 2 x h100_sxm (TP2, fp8), vllm-0.32``."""
    deployment = group.replica.deployment
    size = deployment.layout.gpu_count
    count = "1 replica" if group.replica_count == 1 else f"{group.replica_count} replicas"
    gpus = f"{size} x {deployment.gpu}" if size > 1 else deployment.gpu
    layout = f"{layout_name(deployment.layout)}, " if size > 1 else ""
    precision = "the checkpoint's precision" if deployment.precision == "checkpoint" else deployment.precision
    kv = f", KV {deployment.kv_precision}" if deployment.kv_precision != "bf16" else ""
    smaller = f"for {deployment.model}: " if group.is_smaller_model else ""
    bound = "" if group.up_to is None else f", up to {group.up_to:,}"
    return f"{smaller}{count} of {gpus} ({layout}{precision}{kv}), {deployment.engine.name}{bound}"


def diagnosis_words(judged: Judged, run: Simulated) -> list[str]:
    """The verdict and what it rests on, as sentences."""
    found = judged.diagnosis
    broken = [result for result in judged.slo if not result.kept]
    reads = not run.record.output_tokens.any()
    lines = [_READERS_FULL if reads and found.verdict == "prefill" else verdict_line(found)]
    if run.around.in_lane is not None and run.around.in_lane.all():
        lines = [_ONLY_BATCH]
    if found.verdict == "fine" and broken:
        lines = in_time_yet(found, broken, "not saturated")
    turmoil = run.record.turmoil
    slowed = slowed_by_events(() if turmoil is None else turmoil.decisions)
    behind = behind_lines(found, run.limits, slowed, run.fleet.router, "fleet") if broken else []
    lines = [*(behind or lines), *_evidence_lines(found, run, reads=reads, is_own=not behind)]
    if reads and any(not result.sample_count for result in broken):
        lines.append(NO_TOKENS)
    return [*lines, *_too_slow_alone(found.ttft, run)]


def slowed_by_events(decisions: Sequence[Decision]) -> frozenset[int]:
    """The replicas that events slowed down."""
    return frozenset(number for each in decisions if each.kind == "slow" for number in each.replicas)


def behind_lines(
    found: Diagnosis, limits: DiagnosisLimits, slowed: Collection[int], router: str, whole: str
) -> list[str]:
    """Where one replica is behind and the others have nothing to do with it; none elsewhere.

    Args:
        found: The diagnosis of its fleet, or of its pool.
        limits: Where trouble begins.
        slowed: Replicas that an event slowed down.
        router: Of the fleet.
        whole: What the replicas are together: a fleet, a pool.
    """
    most, elsewhere, replica = found.waiting_peak_count, found.waiting_elsewhere_count, found.waiting_peak_replica
    if not found.ttft.up or most is None or elsewhere is None or most <= limits.waiting_warning_count:
        return []
    if most < _BEHIND * max(elsewhere, 1):
        return []
    where = f"{most:,} wait there while {elsewhere:,} at most wait on any other"
    lines = [f"replica {replica} is behind, the {whole} is not: {where}."]
    if replica in slowed:
        lines.append("An event slowed it down.")
    if router == "round_robin":
        lines.append("The router, round_robin, sends there all the same; least_in_flight sees who is behind.")
    return lines


def verdict_line(found: Diagnosis) -> str:
    """What is saturated, in a sentence."""
    if found.verdict == "prefill" and found.prefill_fraction is not None and found.prefill_fraction < _BURSTS:
        return "prefill is saturated in bursts: prompts that arrive together wait for each other."
    return f"{_VERDICTS[found.verdict]}."


def mend_lines(found: Diagnosis) -> list[str]:
    """What helps."""
    return [_MENDS[found.verdict]] if found.verdict in _MENDS else []


def _evidence_lines(found: Diagnosis, run: Simulated, *, reads: bool, is_own: bool) -> list[str]:
    """What helps, and what a verdict rests on.

    Args:
        found: The diagnosis.
        run: With its limits and its fleet.
        reads: Nothing is generated.
        is_own: The fleet is the cause, so what helps fleets helps.
    """
    limits = run.limits
    lines = [
        *(mend_lines(found) if is_own else []),
        against_line("The time of a request" if reads else "TTFT", found.ttft, limits.ttft_quantile),
        *([] if reads else [against_line("ITL", found.itl, limits.itl_quantile)]),
    ]
    for name, seen in (("TTFT", found.client_ttft), ("E2E", found.client_e2e)):
        if seen is not None and seen.factor is not None:
            lines.append(
                f"Clients saw {name} p{seen.quantile * 100:g} {_time(seen.loaded_s)} where the fleet took "
                f"{_time(seen.alone_s)}."
            )
    if found.verdict == "front_end" and found.front_end_fraction is not None:
        lines.append(f"{_percent(found.front_end_fraction)} of the time to first token passes in the front end.")
    if found.prefill_fraction is not None:
        lines.append(f"{_percent(found.prefill_fraction)} of the work of the peak is prefill.")
    return [*lines, *waiting_lines(found, limits), *odd_lines(found, run.fleet, gaps_are_own=is_own)]


class Unanswered(Protocol):
    """Requests that had no answer."""

    @property
    def refused_by(self) -> Mapping[str, int]:
        """Refused, by reason."""

    @property
    def lost_count(self) -> int:
        """Lost with their replica."""

    @property
    def timed_out_count(self) -> int:
        """Given up by their clients."""


def in_time_yet(found: Unanswered, broken: Sequence[SloResult], at_ease: str) -> list[str]:
    """What breaks the promise where first tokens and gaps come in time: requests without an answer, or single ones.

    Args:
        found: How many had none.
        broken: The clauses.
        at_ease: What is said of the fleet, such as ``not saturated``.
    """
    unanswered = broken_by_silence(found, broken)
    slow = [each for each in broken if each not in unanswered]
    lines = []
    if unanswered:
        causes = ", ".join(unanswered_causes(found))
        lines.append(f"who is served is served in time, yet {_break(unanswered)}: {causes}.")
    if slow:
        lines.append(f"{at_ease}, yet {_break(slow)}: single requests or steps take that long.")
    return lines


def unanswered_causes(found: Unanswered) -> list[str]:
    """How many requests had no answer, by what became of them."""
    causes = [f"{count:,} {REFUSED[name]}" for name, count in found.refused_by.items()]
    if found.lost_count:
        causes.append(f"{found.lost_count:,} {'was' if found.lost_count == 1 else 'were'} lost with a replica")
    return causes + ([f"{found.timed_out_count:,} timed out"] if found.timed_out_count else [])


def broken_by_silence(found: Unanswered, broken: Sequence[SloResult]) -> list[SloResult]:
    """The broken clauses that requests without an answer break."""
    silent = bool(unanswered_causes(found))
    return [each for each in broken if silent and (each.predicted is None or each.name.startswith(_RATES))]


def _break(broken: Sequence[SloResult]) -> str:
    names = [spoken(each.name) for each in broken]
    is_one = len(names) == 1 and not names[0].startswith("errors")
    return f"{', '.join(names)} {'breaks' if is_one else 'break'} the promise"


def against_line(name: str, against: Against, usual_quantile: float) -> str:
    """A time under load against that of the same requests alone."""
    quantile = f"p{against.quantile * 100:g}"
    if against.quantile != usual_quantile:
        quantile += " (replicas differ: of the quantiles nearby, that of the middle ratio)"
    if against.up and against.loaded_s is None:
        return (
            f"{name} is up: {_percent(against.never_fraction)} of the requests got no first token before their "
            f"clients gave up; alone {quantile} is {_time(against.alone_s)}."
        )
    if against.factor is None:
        return f"{name} {quantile}: no sample to compare."
    word = "up" if against.up else "flat"
    return (
        f"{name} is {word}: {quantile} {_time(against.loaded_s)}, {_times(against.factor)} times the "
        f"{_time(against.alone_s)} of the same requests alone."
    )


def _too_slow_alone(ttft: Against, run: Simulated) -> list[str]:
    """Where clients do not even wait for the first token of a request that has a replica to itself."""
    clients = run.around.clients
    waits_s = [each for each in (clients.first_token_timeout_s, clients.timeout_s) if each is not None]
    if not ttft.never_fraction or ttft.alone_s is None or ttft.alone_s <= min(waits_s, default=ttft.alone_s):
        return []
    return [
        f"Clients wait {_time(min(waits_s))}: more than 1 request in {_one_in(ttft.quantile)} takes longer with a "
        "replica to itself. More replicas do not help these; faster ones, shorter prompts or patience do."
    ]


def _one_in(quantile: float) -> str:
    return f"{1.0 / (1.0 - quantile):.0f}"


def _times(factor: float) -> str:
    return f"{factor:,.0f}" if factor >= 9.95 else f"{factor:.1f}"


def _compute(found: Diagnosis) -> str:
    return (
        "No step ran."
        if found.busy_fraction is None
        else f"Replicas are busy {_percent(found.busy_fraction)} of the time."
    )


def waiting_lines(found: Diagnosis, limits: DiagnosisLimits) -> list[str]:
    """The longest queue, and whether it is cause for alarm."""
    if found.waiting_peak_count is None or found.alarm == "unknown":
        return ["Nobody looked at the queues."]
    if found.waiting_peak_count == 0:
        return ["Nobody waits at any sampled moment."]
    held = ""
    if found.ttft.up and found.kv_held_fraction is not None:
        held = f" Of the longest queues, {_percent(found.kv_held_fraction)} wait while KV memory is full"
        held += (
            "."
            if found.slots_held_fraction is None
            else f", {_percent(found.slots_held_fraction)} while every slot is taken."
        )
    count = "1 request waits" if found.waiting_peak_count == 1 else f"{found.waiting_peak_count:,} requests wait"
    text = f"{count} at once on replica {found.waiting_peak_replica}"
    if found.alarm == "emergency":
        text = f"EMERGENCY: {text}, more than {limits.waiting_emergency_count}"
    elif found.alarm == "warning":
        text = f"WARNING: {text}, more than {limits.waiting_warning_count}"
    return [f"{text}.{held}"]


def _preempted(found: Diagnosis) -> str:
    """How often KV memory was lost, and what became of it."""
    count = found.preemption_count
    text = f"{'Once' if count == 1 else f'{count:,} times'} a sequence lost its KV memory"
    after = found.after_preemption
    if after is None:
        return f"{text}."
    again = f"{after.recomputed_tokens:,} tokens were computed again"
    if after.swap_count == 0:
        return f"{text}: {again}."
    return f"{text}; KV went to host memory {after.swap_count:,} times, and {again}."


def odd_lines(found: Diagnosis, fleet: Fleet, *, gaps_are_own: bool = True) -> list[str]:
    """What else is worth a word: long gaps, lost memory, requests that were refused, lost, or sent again."""
    lines = []
    engines = [group.replica.deployment.engine for group in fleet.groups]
    middle_s, tail_s = found.itl.loaded_s, found.tail_gap_s
    if gaps_are_own and middle_s is not None and tail_s is not None and tail_s >= _LONG_TAIL * middle_s:
        lines.append(
            f"1 gap in 100 is {_time(tail_s)} or longer where the middle one is {_time(middle_s)}: {_why_gaps(engines)}"
        )
    if found.preemption_count:
        lines.append(_preempted(found))
    if found.refused_count:
        reasons = ", ".join(f"{count:,} {REFUSED[name]}" for name, count in found.refused_by.items())
        were = "1 request was" if found.refused_count == 1 else f"{found.refused_count:,} requests were"
        lines.append(f"{were} refused: {reasons}.")
    if found.timed_out_count:
        lines.append(
            f"{'1 request' if found.timed_out_count == 1 else f'{found.timed_out_count:,} requests'} timed out."
        )
    if found.sent_again_count:
        lines.append(f"{found.sent_again_count:,} requests were sent again; their first tokens are not compared.")
    if found.lost_count:
        were = "1 request was" if found.lost_count == 1 else f"{found.lost_count:,} requests were"
        lines.append(f"{were} lost with a replica.")
    return lines


def _why_gaps(engines: Sequence[EngineSettings]) -> str:
    """What makes some gaps long, by how the engine fills its steps."""
    if all(engine.name.startswith("sglang") for engine in engines):
        return (
            "answers stand still while prompts are computed. A prefill_decode_interval lets them go on in between, "
            "and first tokens come later."
        )
    return "prompts share steps with answers. A smaller max_batched_tokens shortens these gaps."


def simulation_blocks(run: Simulated, next_lines: Sequence[str]) -> list[Block]:
    """The blocks a terminal shows."""
    waited_for = run.around.waiting_for(run.record)
    blocks: list[Block] = [
        ("Model", [run.model]),
        ("Fleet", [fleet_name(group) for group in run.fleet.groups]),
        ("Demand", demand_lines(run.record, run.slo, waited_for)),
        ("Latency", latency_lines(waited_for, run.around.in_lane)),
        ("Promise", promise_lines(run.peak_window_s, run.peak.slo, run.whole.slo)),
        ("Load", _load(run)),
        ("Peak", diagnosis_words(run.peak, run)),
        ("Whole", whole_words(run)),
    ]
    for name, lines in (
        ("World", [*world_lines(run), *reading_lines(run.record, run.around.reads_tokens_per_s, run.record.telemetry)]),
        ("Tenants", tenant_lines(run.fairness)),
        ("Scaling", scaling_lines(run)),
        ("Ladder", ladder_lines(run)),
        ("Batch", lane_lines(run.record, run.around.in_lane)),
    ):
        if lines:
            blocks.append((name, lines))
    read = data(run.workload.quality)
    if read:
        blocks.append(("Data", read))
    return [*blocks, ("Assumed", list(run.assumptions)), ("Next", next_lines)]


def demand_lines(record: RunRecord, slo: Slo, waited_for: RunRecord) -> list[str]:
    """How many requests there were, and how many of those that somebody waits for were served well."""
    finished = int((record.status == Status.FINISHED).sum())
    total = len(record.arrival_s)
    span_s = record.span_s
    took = f" in {shown_duration(span_s)}, {shown_rate(finished / span_s)} finish a second" if span_s > 0 else ""
    good = goodput(waited_for, slo)
    lines = [f"{total:,} requests{took}; {ending_words(record.status)}"]
    if good.rate_per_s is not None and good.fraction is not None and good.clauses:
        named = ", ".join(spoken(clause) for clause in good.clauses)
        lines.append(f"goodput {shown_rate(good.rate_per_s)}/s: {_percent(good.fraction)} within the limits of {named}")
    return lines


def latency_lines(record: RunRecord, batch: Bools | None) -> list[str]:
    """A table of every latency of the requests that somebody waits for."""
    lines = ["".ljust(6) + "".join(key.rjust(13) for key in QUANTILES)]
    for name, values in latencies(record).items():
        lines.append(name.upper().ljust(6) + "".join(_time(values[key]).rjust(13) for key in QUANTILES))
    if batch is None:
        return lines
    return [*lines, f"{'all requests are' if batch.all() else 'of all but'} batch, which has its own lines below"]


def promise_lines(peak_s: Window, peak: Sequence[SloResult], whole: Sequence[SloResult]) -> list[str]:
    """The promise at the peak and over the whole run."""
    start_s, end_s = peak_s
    began = f"from {shown_duration(start_s)} on" if start_s > 0 else "from the start on"
    when = f"in the busiest {shown_duration(end_s - start_s)}, {began}:"
    return [when, *_rows(peak), "over the whole run:", *_rows(whole)]


def _rows(results: Sequence[SloResult]) -> list[str]:
    return columns(
        [(spoken(each.name), *_ranged(each), f"of {_shown(each, each.promised)}", _found(each)) for each in results]
    )


def _found(result: SloResult) -> str:
    return verdict(result) if result.sample_count or result.predicted is not None else NOBODY


def _ranged(result: SloResult) -> tuple[str, str]:
    low, high = result.predicted_low, result.predicted_high
    if result.predicted is None:
        # Samples without a value: so many requests had no answer that none is at the quantile.
        return ("never" if result.sample_count else "unknown"), ""
    if low is None or low == high:
        return _shown(result, result.predicted), ""
    slowest = "never" if high is None else _shown(result, high)
    return _shown(result, result.predicted), f"({_shown(result, low)} to {slowest})"


def _shown(result: SloResult, value: float) -> str:
    return _percent(value) if result.unit == "fraction" else shown_value(result.unit, value)


def _load(run: Simulated) -> list[str]:
    record, rows = run.record, replica_rows(run.record, run.fleet)
    prompt = int(record.input_tokens.sum(dtype="int64"))
    cached = int(record.cached_tokens.sum(dtype="int64"))
    share = f"; {_percent(cached / prompt)} of the input came from the prefix cache" if prompt else ""
    lines = [f"{int(record.preemption_count.sum(dtype='int64')):,} preemptions{share}"]
    if run.around.admission.queue_limit_count is None:
        longest = max(row.waiting_peak_count for row in rows)
        lines.append(
            f"no door stands before the fleet, so no queue is bounded: {longest:,} waited at one replica at most"
        )
    fullest = sorted(rows, key=lambda row: (-row.kv_peak_fraction, -row.waiting_peak_count, row.replica))
    lines += [
        f"replica {row.replica}: KV memory {_percent(row.kv_peak_fraction)} at most, {row.running_peak_count:,} "
        f"running, {row.waiting_peak_count:,} waiting, {shown_count(row.request_count)} requests served"
        for row in fullest[:_MOST_REPLICAS]
    ]
    if len(rows) > _MOST_REPLICAS:
        lines.append(f"... and {len(rows) - _MOST_REPLICAS} replicas that are less full")
    return lines


def tenant_lines(found: Fairness | None) -> list[str]:
    """How equally tenants were served; nothing where there are fewer than two."""
    if found is None:
        return []
    lines = [
        f"{len(found.tenants):,} tenants: Jain's index {found.served_jain_fraction:.3f} of the shares that were served"
        f"{_of_slowdowns(found)}"
    ]
    slowest = found.tenants[0]
    if slowest.slowdown is not None and slowest.slowdown >= _SLOWED:
        lines.append(
            f"{slowest.tenant} waits most: answers take {slowest.slowdown:.2f} times what they take once admitted"
        )
    if found.worst_ttft_tenant is not None and found.worst_ttft_factor is not None:
        factor = _times(found.worst_ttft_factor)
        lines.append(f"TTFT p95 of {found.worst_ttft_tenant} is {factor} times that of the median tenant")
    return lines


def _of_slowdowns(found: Fairness) -> str:
    return "" if found.slowdown_jain_fraction is None else f", {found.slowdown_jain_fraction:.3f} of their slowdowns"


def whole_words(run: Simulated) -> list[str]:
    """Queues and oddities of the whole run; its quantiles mix quiet hours with busy ones, so no verdict."""
    found = run.whole.diagnosis
    return [_compute(found), *waiting_lines(found, run.limits), *odd_lines(found, run.fleet)]


def _time(value_s: float | None) -> str:
    return "unknown" if value_s is None else shown_duration(value_s)


def _percent(fraction: float) -> str:
    return f"{fraction * 100:.3g} %"
