"""What files say about traffic, as a person reads it in a terminal: what was read and what is odd, then what it is."""

import math
from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokenfleet import workload
from tokenfleet.app.columns import columns, figures
from tokenfleet.app.intake import Found, confidence, kind_of
from tokenfleet.app.quantities import shown_count, shown_duration, shown_rate
from tokenfleet.app.traffic_document import peak_over_mean_range
from tokenfleet.domain.trace import LengthSummary, Quality, Trace, Workload

Block = tuple[str, Sequence[str]]

_GROUPS_SHOWN: Final = 6
_BURSTS_SHOWN: Final = 3
_KEPT: Final = "keep them with --unfinished impute"
_IN_PARTS: Final = (
    "not counted in a file taken in parts: prefixes, lengths by tenant, the time from an answer to the next call, "
    "retries, rows that came twice; --in-parts no counts them"
)
_BARS: Final = "▁▂▃▄▅▆▇█"
_DAYS: Final = ("Mon", "Tue", "Wed", "Thu", "Fri", "Sat", "Sun")


def traffic_blocks(found: Found) -> list[Block]:
    """The quality report first, then what the traffic is like."""
    if isinstance(found, Workload):
        return [*_quality(found.quality, found), *_described(found)]
    return _sums(found) if isinstance(found, workload.Aggregates) else _metrics(found)


def change_blocks(old: Workload, new: Workload, changes: Sequence[workload.Change]) -> list[Block]:
    """What moved since an older profile, and what that does to demand."""
    before, after = _token_rate(old), _token_rate(new)
    arrows = {"up": "more work", "down": "less work", "same": "the same work"}
    lines = [f"{change.text}: {arrows[change.demand]}" for change in changes]
    if not lines:
        lines = ["nothing moved by 5 % or more"]
    lines.append(
        f"all together {after / before - 1:+.0%} tokens/s ({shown_count(before)} then, {shown_count(after)} now)"
    )
    return [("Moved", lines)]


def _token_rate(described: Workload) -> float:
    tokens = int(described.minute_input_tokens.sum() + described.minute_output_tokens.sum())
    return tokens / max(described.duration_s, 1.0)


def _quality(quality: Quality, found: Found) -> list[Block]:
    dropped = sum(quality.rows_dropped.values())
    lines = [f"{quality.rows_read:,} rows read = {quality.rows_kept:,} kept + {dropped:,} dropped"]
    reasons = sorted(quality.rows_dropped.items(), key=lambda item: (-item[1], item[0]))
    lines += [f"{count:>7,} dropped: {reason}" for reason, count in reasons if count]
    warnings = [*quality.warnings, _IN_PARTS] if "parts" in quality.detected else quality.warnings
    return [("Read", lines), ("Found", _pairs(quality.detected)), *_doubts(warnings, found)]


def _pairs(detected: Mapping[str, str]) -> list[str]:
    return columns(list(detected.items()))


def _doubts(warnings: Sequence[str], found: Found) -> list[Block]:
    level, why = confidence(found)
    lines = [text.replace("they can be kept with imputed lengths", _KEPT) for text in warnings]
    blocks: list[Block] = [("Odd", lines)] if lines else []
    return [*blocks, ("Trust", [f"{level} ({kind_of(found)}): {why}"])]


def _described(described: Workload) -> list[Block]:
    facts = described.extra
    blocks: list[Block] = [("Lengths", _lengths(described)), ("Time", _time(described))]
    if facts.get("bursts"):
        blocks.append(("Bursts", _bursts(facts["bursts"])))
    for label, key in (("Models", "models"), ("Kinds", "labels"), ("Tenants", "tenants")):
        groups = facts.get(key)
        if groups and (len(groups) > 1 or key != "labels"):
            blocks.append((label, _groups(groups, described.request_count)))
    if "top_10_tenant_fraction" in facts and len(described.tenant_request_counts) > 10:
        label, lines = blocks.pop()
        blocks.append((label, [*lines, f"the ten largest send {facts['top_10_tenant_fraction']:.0%} of the requests"]))
    reuse = _reuse(described)
    if reuse:
        blocks.append(("Reuse", reuse))
    ends = _ends(facts)
    if ends:
        blocks.append(("Ends", ends))
    return blocks


def _lengths(described: Workload) -> list[str]:
    rows: list[tuple[str, ...]] = [("tokens", "p50", "p90", "p95", "p99", "longest", "mean")]
    rows += [_length_row("input", described.input_tokens), _length_row("output", described.output_tokens)]
    for name, key in (("cached", "cached_tokens"), ("reasoning", "reasoning_tokens")):
        part = described.extra.get(key)
        if isinstance(part, dict) and "p50" in part:
            rows.append((name, *(f"{part[each]:,.0f}" for each in ("p50", "p90", "p95", "p99", "max", "mean"))))
    lines = figures(rows)
    buckets = described.extra.get("length_buckets")
    if buckets:
        shares = ", ".join(f"{name.replace('_', '-')} {share:.0%}" for name, share in buckets.items())
        lines.append(f"prompt-answer: {shares}  (long: from 2,048 and from 256 tokens on)")
    return lines


def _length_row(name: str, lengths: LengthSummary) -> tuple[str, ...]:
    values = (lengths.p50, lengths.p90, lengths.p95, lengths.p99, lengths.max, lengths.mean)
    return (name, *(f"{value:,.0f}" for value in values))


def _time(described: Workload) -> list[str]:
    facts = described.extra
    since = f" from {_moment(facts['start_utc'])}" if facts.get("start_utc") else ""
    mean = (
        f", {shown_rate(described.mean_rate_per_s)}/s on average" if not math.isnan(described.mean_rate_per_s) else ""
    )
    lines = [
        f"{described.request_count:,} requests in {shown_duration(described.duration_s)}{since}{mean}",
        f"busiest minute {shown_rate(described.peak_minute_rate_per_s)} requests/s: "
        f"{described.peak_to_mean_minute_requests:.3g} times the mean by requests, "
        f"{described.peak_to_mean_minute_tokens:.3g} times by tokens ({_after(described.peak_minute_start_s)})",
    ]
    if "busiest_hour_tokens_over_mean" in facts:
        at = _after(facts["busiest_hour_start_s"])
        lines.append(f"busiest hour {facts['busiest_hour_tokens_over_mean']:.3g} times the mean by tokens ({at})")
    if not math.isnan(described.interarrival_cv):
        lines.append(f"gaps between requests vary by {described.interarrival_cv:.3g} (Poisson is 1)")
    for key, title in (
        ("hour_of_day_tokens", "tokens by hour of the day, UTC"),
        ("day_of_week_tokens", "by weekday, Mon-Sun"),
    ):
        if facts.get(key):
            lines.append(f"{title}  {_bars(facts[key])}  most at {_most(facts[key], key)}")
    if "trend_fraction_per_day" in facts:
        lines.append(f"trend {facts['trend_fraction_per_day']:+.1%} of the mean per day")
    if "non_stationary" in facts:
        change = facts["non_stationary"]
        lines.append(
            f"two levels, one {change['ratio']:.3g} times the other (the change comes {_after(change['change_s'])})"
        )
    return lines


def _moment(start_utc: str) -> str:
    return f"{start_utc[:10]} {start_utc[11:16]} UTC"


def _after(time_s: float) -> str:
    minutes, seconds = divmod(round(time_s), 60)
    hours, minutes = divmod(minutes, 60)
    return f"at +{hours:02d}:{minutes:02d}:{seconds:02d}"


def _bars(values: Sequence[float]) -> str:
    highest = max(values)
    return "".join(_BARS[min(len(_BARS) - 1, int(value / highest * len(_BARS)))] for value in values) if highest else ""


def _most(values: Sequence[float], key: str) -> str:
    place = max(range(len(values)), key=lambda index: values[index])
    name = f"{place:02d}:00" if key.startswith("hour") else _DAYS[place]
    return f"{name}, {values[place]:.3g} times the mean"


def _bursts(bursts: Sequence[Mapping[str, float]]) -> list[str]:
    lines = [
        f"{shown_duration(burst['duration_s'])} {_after(burst['start_s'])}: {shown_count(burst['tokens'])} tokens, "
        f"up to {burst['peak_over_mean']:.3g} times the mean minute"
        for burst in bursts[:_BURSTS_SHOWN]
    ]
    more = len(bursts) - _BURSTS_SHOWN
    return lines + ([f"and {more} more" if len(bursts) < 10 else f"and {more} or more"] if more > 0 else [])


def _groups(groups: Mapping[str, Mapping[str, float]], total: int) -> list[str]:
    rows: list[tuple[str, ...]] = [("", "requests", "share", "input p50 / p95", "output p50 / p95")]
    for name, each in list(groups.items())[:_GROUPS_SHOWN]:
        sides = (
            f"{each[f'{side}_tokens_p50']:,.0f} / {each[f'{side}_tokens_p95']:,.0f}" for side in ("input", "output")
        )
        rows.append((_short(name), f"{each['request_count']:,}", f"{each['request_count'] / total:.1%}", *sides))
    rest = len(groups) - _GROUPS_SHOWN
    return figures(rows) + ([f"and {rest} more" if len(groups) < 50 else f"and {rest} or more"] if rest > 0 else [])


def _short(name: str) -> str:
    shown = "".join(letter if letter.isprintable() else "?" for letter in name) or "unknown"
    return shown if len(shown) <= 32 else f"{shown[:31]}…"


def _reuse(described: Workload) -> list[str]:
    facts, lines = described.extra, []
    cached = facts.get("cached_tokens")
    if isinstance(cached, dict) and "fraction" in cached and not math.isnan(cached["fraction"]):
        lines.append(
            f"{cached['fraction']:.1%} of the input came from a prefix cache "
            f"(known for {cached['known_fraction']:.0%} of the requests)"
        )
    if described.shareable_input_fraction is not None:
        lines.append(f"{described.shareable_input_fraction:.1%} of the input could come from an endless prefix cache")
    sessions = facts.get("sessions")
    return lines + (_sessions(sessions) if isinstance(sessions, dict) and "turns" in sessions else [])


def _sessions(sessions: Mapping[str, Any]) -> list[str]:
    turns = sessions["turns"]
    text = f"{sessions['count']:,} sessions; turns p50 {turns['p50']:,.0f}, p95 {turns['p95']:,.0f}"
    if "input_growth_tokens" in sessions:
        text += f"; the prompt grows by {sessions['input_growth_tokens']['p50']:+,.0f} tokens a turn (p50)"
    pauses = [
        f"{title} p50 {shown_duration(sessions[key]['p50'])}, p95 {shown_duration(sessions[key]['p95'])}"
        for key, title in (("think_s", "from an answer to the next call"), ("pause_s", "from call to call"))
        if key in sessions
    ]
    return [text, *(["; ".join(pauses)] if pauses else [])]


def _ends(facts: Mapping[str, Any]) -> list[str]:
    lines = []
    streamed = facts.get("streamed_fraction")
    if streamed is not None and not math.isnan(streamed):
        lines.append(f"{streamed:.0%} streamed")
    for key, title in (("finish_fractions", "finished by"), ("status_fractions", "status")):
        if facts.get(key):
            shares = sorted(facts[key].items(), key=lambda item: -item[1])
            lines.append(f"{title} {', '.join(f'{_short(name)} {share:.1%}' for name, share in shares)}")
    if facts.get("truncated_fraction"):
        lines.append(f"{facts['truncated_fraction']:.1%} were cut at the longest answer allowed: they wanted more")
    waits = [
        f"{title} p50 {shown_duration(facts[key]['p50'])}, p99 {shown_duration(facts[key]['p99'])}"
        for key, title in (("ttft_s", "TTFT"), ("e2e_s", "E2E"))
        if facts.get(key)
    ]
    return lines + ([f"as logged: {'; '.join(waits)}"] if waits else [])


def _sums(sums: workload.Aggregates) -> list[Block]:
    from tokenfleet.app.traffic_document import traffic_document

    document = traffic_document(sums)
    read = [f"{document['rows_read']:,} sums over {shown_duration(sums.bucket_s)} each, from {_moment(sums.start_utc)}"]
    within = sums.peak_over_mean()
    lines = [
        f"{document['request_count']:,.0f} requests, {shown_rate(document['mean_rate_per_s'])}/s on average",
        f"busiest minute {_span(sums.peak_rate_range_per_s(), shown_rate)} requests/s",
    ]
    for title, series in (("requests", sums.requests), ("tokens", sums.input_tokens + sums.output_tokens)):
        ratio = peak_over_mean_range(series, within)
        if ratio is not None:
            lines.append(
                f"busiest minute over the mean minute by {title}: {_span(ratio, lambda each: f'{each:.3g}')} times"
            )
    means = [
        f"{name} {document[key]['mean']:,.0f}"
        for name, key in (("input", "input_tokens"), ("output", "output_tokens"))
        if document[key]["mean"] is not None
    ]
    tokens = [f"tokens of a request on average: {', '.join(means)}; quantiles are unknown"] if means else []
    if document["cached_fraction"] is not None:
        tokens.append(f"{document['cached_fraction']:.1%} of the input came from a prefix cache")
    blocks: list[Block] = [("Read", read), ("Found", _pairs({"format": sums.source})), *_doubts(sums.warnings, sums)]
    return [*blocks, ("Time", lines), *([("Lengths", tokens)] if tokens else [])]


def _span(span: tuple[float, float], shown: Any) -> str:  # noqa: ANN401 - any function from a number to text
    low, high = shown(span[0]), shown(span[1])
    return low if low == high else f"{low} to {high}"


def _metrics(page: workload.MetricsSnapshot) -> list[Block]:
    models = f" serving {', '.join(page.models)}" if page.models else ""
    totals = {**page.counters, **page.gauges}
    counted = [(name.replace("_", " "), f"{value:,.6g}") for name, value in totals.items()]
    rows: list[tuple[str, ...]] = [("", "count", "mean", "p50 between", "p99 between")]
    for name, each in page.histograms.items():
        ranges = [each.quantile_range(fraction) for fraction in (0.5, 0.99)]
        spans = (f"{low:.4g} and {high:.4g}" for low, high in ranges)
        rows.append((name.replace("_", " "), f"{each.count:,.0f}", f"{each.mean:,.4g}", *spans))
    blocks: list[Block] = [("Read", [f"a metrics page of {page.engine}{models}"]), *_doubts(page.warnings, page)]
    if counted:
        blocks.append(("Counts", figures(counted)))
    return [*blocks, *([("Spread", figures(rows))] if page.histograms else [])]


def beside_blocks(trace: Trace, described: Workload, source: Workload | None) -> list[Block]:
    """What was drawn, beside the profile it was drawn from."""
    rate = "" if math.isnan(described.mean_rate_per_s) else f", {shown_rate(described.mean_rate_per_s)}/s on average"
    lines = [f"{trace.request_count:,} requests in {shown_duration(trace.duration_s)}{rate}"]
    if trace.session is not None:
        lines.append(
            f"{described.session_count:,} sessions" + (", with the prompts they share" if trace.prefixes else "")
        )
    drawn = _figures(described)
    head, rows = ("", "drawn"), [(name, value) for name, value in drawn]
    if source is None:
        return [("Drew", lines), ("Is", figures([head, *rows]))]
    measured = dict(_figures(source))
    beside = [(name, value, measured.get(name, "unknown")) for name, value in drawn]
    return [("Drew", lines), ("Is", figures([(*head, "measured"), *beside]))]


def _figures(described: Workload) -> list[tuple[str, str]]:
    figures = [
        (f"{side} tokens {name}", f"{getattr(lengths, name):,.0f}")
        for side, lengths in (("input", described.input_tokens), ("output", described.output_tokens))
        for name in ("p50", "p95", "p99")
    ]
    return [
        *figures,
        ("peak over mean by requests", f"{described.peak_to_mean_minute_requests:.3g}"),
        ("peak over mean by tokens", f"{described.peak_to_mean_minute_tokens:.3g}"),
        (
            "variation of gaps",
            "unknown" if math.isnan(described.interarrival_cv) else f"{described.interarrival_cv:.3g}",
        ),
        *_session_figures(described),
    ]


def _session_figures(described: Workload) -> list[tuple[str, str]]:
    sessions = described.extra.get("sessions") or {}
    found = []
    if "turns" in sessions:
        found.append(("turns of a session, mean", f"{sessions['turns']['mean']:.3g}"))
    if "input_growth_tokens" in sessions:
        found.append(("growth of a prompt p50", f"{sessions['input_growth_tokens']['p50']:+,.0f}"))
    if "pause_s" in sessions:
        found.append(("from call to call p50", shown_duration(sessions["pause_s"]["p50"])))
    if described.shareable_input_fraction is not None:
        found.append(("input an endless cache serves", f"{described.shareable_input_fraction:.1%}"))
    return found
