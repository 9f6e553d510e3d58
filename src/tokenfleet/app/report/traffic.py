"""A profile as one page: what was read and what is odd about it, then what the traffic is like."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

from tokenfleet.app.intake import confidence, kind_of
from tokenfleet.app.report.charts import FIRST, Absent, Chart, Table, axis, layout, plain
from tokenfleet.app.report.demand import Demand, describe
from tokenfleet.app.report.words import amount, clock, digits, duration, exact, percent
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Workload
from tokenfleet.workload import Change, compare

_GROUPS_SHOWN: Final = 15
_DAYS: Final = ("Monday", "Tuesday", "Wednesday", "Thursday", "Friday", "Saturday", "Sunday")
_BUCKETS: Final = {
    "short_short": "Short prompt, short answer",
    "long_short": "Long prompt, short answer",
    "short_long": "Short prompt, long answer",
    "long_long": "Long prompt, long answer",
}
_WORK: Final = {"up": "more", "down": "less", "same": "the same"}


@dataclass(frozen=True, slots=True, kw_only=True)
class TrafficPage:
    """All sections of the page."""

    lead: str
    trust: str
    trust_mood: str
    demand: Demand
    moved: Table | None
    nothing_moved: bool
    buckets: Table | None
    bursts: Table | None
    groups: tuple[tuple[str, Table], ...]
    reuse: Table | None
    endings: Table | None
    times: Table | None
    rhythm: tuple[Chart | Absent, ...]

    @property
    def charts(self) -> tuple[Chart | Absent, ...]:
        """Every chart of the page."""
        return (*self.demand.charts, *self.rhythm)


def traffic_page(workload: Workload, old: Workload | None) -> TrafficPage:
    """What the page of ``workload`` says, beside an ``old`` profile when there is one."""
    level, why = confidence(workload)
    facts = workload.extra
    changes = compare(old, workload) if old is not None else ()
    return TrafficPage(
        lead=_lead(workload),
        trust=f"Trust: {level}. A {kind_of(workload)}: {why}.",
        trust_mood={"high": "good", "medium": "thin", "low": "bad"}[level],
        demand=describe(workload),
        moved=_moved(changes),
        nothing_moved=old is not None and not changes,
        buckets=_buckets(facts.get("length_buckets")),
        bursts=_bursts(facts.get("bursts")),
        groups=_groups(facts),
        reuse=_reuse(workload),
        endings=_endings(facts),
        times=_times(facts),
        rhythm=(
            *_bars(
                facts.get("hour_of_day_tokens"), "hour", "Tokens by hour of the day, UTC", list(map(str, range(24)))
            ),
            *_bars(facts.get("day_of_week_tokens"), "weekday", "Tokens by day of the week", list(_DAYS)),
        ),
    )


def _lead(workload: Workload) -> str:
    return (
        f"{exact(workload.request_count)} requests in {duration(workload.duration_s)}; "
        f"{amount(workload.peak_minute_rate_per_s)} requests/s in the busiest minute, "
        f"{digits(workload.peak_to_mean_minute_tokens)} times the mean by tokens. "
        f"Half of the prompts are longer than {workload.input_tokens.p50:,.0f} tokens, "
        f"half of the answers longer than {workload.output_tokens.p50:,.0f}."
    )


def _moved(changes: Sequence[Change]) -> Table | None:
    rows = tuple((change.text, _WORK[change.demand]) for change in changes)
    return Table(head=("What moved since the older profile", "Work for the fleet"), rows=rows) if rows else None


def _buckets(shares: Mapping[str, float] | None) -> Table | None:
    if not shares:
        return None
    rows = tuple((_BUCKETS[name], percent(share)) for name, share in shares.items())
    return Table(head=("Long: from 2,048 prompt and 256 answer tokens on", "Share"), rows=rows, numeric=frozenset({1}))


def _bursts(bursts: Sequence[Mapping[str, float]] | None) -> Table | None:
    if not bursts:
        return None
    rows = tuple(
        (
            clock(burst["start_s"]),
            duration(burst["duration_s"]),
            amount(burst["tokens"]),
            f"{digits(burst['peak_over_mean'])} times",
        )
        for burst in bursts
    )
    return Table(head=("From", "Lasts", "Tokens", "Highest minute to mean"), rows=rows, numeric=frozenset({1, 2, 3}))


def _groups(facts: Mapping[str, Any]) -> tuple[tuple[str, Table], ...]:
    titles = {"models": "Models", "labels": "Kinds of request", "tenants": "Tenants"}
    return tuple((title, _group_table(title, facts[key])) for key, title in titles.items() if facts.get(key))


def _group_table(title: str, groups: Mapping[str, Mapping[str, float]]) -> Table:
    total = sum(each["request_count"] for each in groups.values())
    rows = tuple(
        (
            name or "unknown",
            exact(int(each["request_count"])),
            percent(each["request_count"] / total),
            *(f"{each[f'{side}_tokens_{name_}']:,.0f}" for side in ("input", "output") for name_ in ("p50", "p95")),
        )
        for name, each in list(groups.items())[:_GROUPS_SHOWN]
    )
    rest = len(groups) - _GROUPS_SHOWN
    return Table(
        head=(title, "Requests", "Share", "Input p50", "Input p95", "Output p50", "Output p95"),
        rows=rows,
        numeric=frozenset(range(1, 7)),
        caption=f"The {_GROUPS_SHOWN} largest; {rest} more in the profile." if rest > 0 else "",
    )


def _reuse(workload: Workload) -> Table | None:
    facts = workload.extra
    rows: list[tuple[str, str]] = []
    cached = facts.get("cached_tokens")
    if isinstance(cached, dict) and "fraction" in cached:
        rows.append(("Input that came from a prefix cache", percent(cached["fraction"])))
        rows.append(("Requests for which that is known", percent(cached["known_fraction"])))
    if workload.shareable_input_fraction is not None:
        rows.append(("Input an endless prefix cache could serve", percent(workload.shareable_input_fraction)))
    sessions = facts.get("sessions")
    if isinstance(sessions, dict) and "turns" in sessions:
        turns = sessions["turns"]
        rows.append(("Sessions", exact(sessions["count"])))
        rows.append(("Turns of a session, p50 / p95 / most", _three(turns, digits)))
        for key, title, shown in (
            ("input_growth_tokens", "Growth of the prompt in a turn, p50 / p95 / most", digits),
            ("think_s", "From an answer to the next call, p50 / p95 / longest", duration),
            ("pause_s", "From call to call, p50 / p95 / longest", duration),
        ):
            if key in sessions:
                rows.append((title, _three(sessions[key], shown)))
    return Table(head=("Reuse and sessions", ""), rows=tuple(rows), numeric=frozenset({1})) if rows else None


def _three(quantiles: Mapping[str, float], shown: Any) -> str:  # noqa: ANN401 - any function from a number to text
    return " / ".join(shown(quantiles[name]) for name in ("p50", "p95", "max"))


def _endings(facts: Mapping[str, Any]) -> Table | None:
    rows: list[tuple[str, str]] = []
    if "streamed_fraction" in facts:
        rows.append(("Streamed", percent(facts["streamed_fraction"])))
    for key, title in (("finish_fractions", "Finished by"), ("status_fractions", "Status")):
        rows += [(f"{title} {name}", percent(share)) for name, share in facts.get(key, {}).items()]
    return Table(head=("How requests end", "Share"), rows=tuple(rows), numeric=frozenset({1})) if rows else None


def _times(facts: Mapping[str, Any]) -> Table | None:
    rows = tuple(
        (title, *(duration(facts[key][name]) for name in ("p50", "p90", "p99", "max")))
        for key, title in (("ttft_s", "Time to first token"), ("e2e_s", "Time to the last token"))
        if facts.get(key)
    )
    head = ("As the log says", "p50", "p90", "p99", "Longest")
    return Table(head=head, rows=rows, numeric=frozenset(range(1, 5))) if rows else None


def _bars(values: Sequence[float] | None, key: str, title: str, names: list[str]) -> tuple[Chart, ...]:
    if not values:
        return ()
    bars = {
        "type": "bar",
        "name": title,
        "x": names,
        "y": plain(values),
        "marker": {"color": FIRST},
        "hovertemplate": "%{x}: %{y:.2f} times the mean<extra></extra>",
    }
    figure = {"data": [bars], "layout": layout(axis("", type="category"), axis("times the mean", rangemode="tozero"))}
    return (Chart(key=f"by-{key}", title=title, note="1 is the mean of the whole time.", figure=figure, height_px=260),)
