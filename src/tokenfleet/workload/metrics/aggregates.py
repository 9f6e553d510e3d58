"""Counts per minute, hour or day: weaker than a request log, and the peak they allow is a range."""

from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.workload.formats.records import at, count, number, text
from tokenfleet.workload.formats.source import open_source
from tokenfleet.workload.metrics.exposition import Series, is_query, parse_json, read_query
from tokenfleet.workload.metrics.names import COUNTERS, HISTOGRAMS

Floats = npt.NDArray[np.float64]

PEAK_OVER_MEAN: tuple[tuple[float, float, float], ...] = (
    (60.0, 1.0, 1.0),
    (3600.0, 1.2, 4.3),
    (86_400.0, 1.5, 5.0),
)
"""Bucket up to this long, in seconds: least and greatest busiest minute over the mean minute of one bucket. Within an
hour public traces show 1.2 to 4.3, within a day 1.5 to 5."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Aggregates:
    """Sums per bucket of equal length. NaN is unknown."""

    source: str
    bucket_s: float
    start_utc: str
    requests: Floats
    input_tokens: Floats
    """Cached ones included."""
    cached_tokens: Floats
    output_tokens: Floats
    warnings: tuple[str, ...]

    def peak_rate_range_per_s(self) -> tuple[float, float]:
        """Requests per second in the busiest minute: least and greatest that fit the sums."""
        least, most = self.peak_over_mean()
        busiest = float(np.nanmax(self.requests)) / self.bucket_s
        return busiest * least, busiest * most

    def peak_over_mean(self) -> tuple[float, float]:
        """Busiest minute over the mean minute inside the busiest bucket: a range unless buckets are minutes.

        Raises:
            BadInput: buckets longer than a day, which cannot size anything.
        """
        for longest_s, least, most in PEAK_OVER_MEAN:
            if self.bucket_s <= longest_s * 1.001:
                return least, most
        raise BadInput.at(self.source, "sums over more than a day cannot tell a peak", "export by day or shorter")


def read_aggregates(path: str | Path) -> Aggregates:
    """Read sums per time bucket: OpenAI's usage API, LiteLLM's daily activity, a Prometheus range query.

    Raises:
        BadInput: something else, buckets of unequal length, or no bucket with a request.
    """
    source = open_source(Path(path))
    document = parse_json(source.content().decode("utf-8", errors="replace"), where=source.where)
    if is_query(source.head):
        return aggregates_of(read_query(document, where=source.where), source.where)
    if at(document, "object") == "page":
        return _of_openai(document, source.where)
    if isinstance(at(document, "results"), list) and at(document, "metadata", "page") is not None:
        return _of_litellm(document, source.where)
    raise BadInput.at(
        source.where,
        "holds no sums that are known",
        "known: OpenAI usage pages, LiteLLM daily activity, Prometheus range queries",
    )


def _of_openai(document: dict[str, Any], where: str) -> Aggregates:
    """Buckets without results are silence, not gaps; batch results are no interactive load and are left out."""
    buckets, batch = [], 0
    for bucket in document.get("data") or []:
        begin, end = number(at(bucket, "start_time")), number(at(bucket, "end_time"))
        if begin is None or end is None:
            continue
        sums = np.zeros(4)
        for result in at(bucket, "results") or []:
            if at(result, "batch") is True:
                batch += count(at(result, "num_model_requests")) or 0
                continue
            keys = ("num_model_requests", "input_tokens", "input_cached_tokens", "output_tokens")
            sums += [count(at(result, key)) or 0 for key in keys]
        buckets.append((begin, end, sums))
    warnings = [f"{batch} requests of the batch API are left out"] if batch else []
    if document.get("has_more"):
        warnings.append("this is one page of several: fetch the next ones and join them")
    return _joined("OpenAI usage", buckets, warnings, where)


def _of_litellm(document: dict[str, Any], where: str) -> Aggregates:
    buckets = []
    failed = 0
    for result in document["results"]:
        day = text(at(result, "date"))
        metrics = at(result, "metrics")
        try:
            begin = datetime.fromisoformat(day or "").replace(tzinfo=UTC).timestamp()
        except ValueError:
            continue
        keys = ("successful_requests", "prompt_tokens", "cache_read_input_tokens", "completion_tokens")
        buckets.append((begin, begin + 86_400.0, np.array([float(count(at(metrics, key)) or 0) for key in keys])))
        failed += count(at(metrics, "failed_requests")) or 0
    warnings = [f"{failed} failed requests are left out: demand was higher"] if failed else []
    return _joined("LiteLLM daily activity", buckets, warnings, where)


def _joined(source: str, buckets: list[tuple[float, float, Floats]], warnings: list[str], where: str) -> Aggregates:
    if not buckets:
        raise BadInput.at(where, "holds no bucket", "export again, with a longer time span")
    buckets = sorted(buckets, key=lambda bucket: bucket[0])
    lengths = {round(end - begin, 3) for begin, end, _ in buckets}
    if len(lengths) > 1:
        raise BadInput.at(where, f"mixes buckets of {sorted(lengths)} s", "export with one bucket width")
    width = lengths.pop()
    first = buckets[0][0]
    size = round((buckets[-1][0] - first) / width) + 1
    sums = np.full((size, 4), np.nan)
    for begin, _, values in buckets:
        place = round((begin - first) / width)
        sums[place] = np.where(np.isnan(sums[place]), 0.0, sums[place]) + values
    if not np.nansum(sums[:, 0]) > 0:
        raise BadInput.at(where, "counts no request", "export a time with traffic in it")
    missing = int(np.isnan(sums[:, 0]).sum())
    if missing:
        warnings = [*warnings, f"{missing} of {size} buckets are missing between the others: gaps, not silence"]
    if width > 60:
        warnings = [*warnings, f"sums over {width:g} s do not show the busiest minute: its height is a range"]
    return Aggregates(
        source=source,
        bucket_s=width,
        start_utc=_stamp(first),
        requests=sums[:, 0],
        input_tokens=sums[:, 1],
        cached_tokens=sums[:, 2],
        output_tokens=sums[:, 3],
        warnings=tuple(warnings),
    )


def columns_of_query() -> dict[str, set[str]]:
    """Ours -> counters that tell it, over all engines and their versions."""
    return {
        "requests": _names("finished_count") | {name + "_count" for name in _histogram_names("e2e_s")},
        "input_tokens": _names("prompt_tokens") | {name + "_sum" for name in _histogram_names("input_tokens")},
        "cached_tokens": _names("cached_tokens") | _names("prefix_hits_tokens"),
        "output_tokens": _names("generation_tokens") | {name + "_sum" for name in _histogram_names("output_tokens")},
    }


def aggregates_of(series: list[Series], where: str) -> Aggregates:
    """Growth of counters per step, resets taken care of, summed over engines and labels.

    Raises:
        BadInput: no counter of finished requests, or a single point in time.
    """
    chosen = {ours: _one_metric(series, names) for ours, names in columns_of_query().items()}
    if not chosen["requests"]:
        raise BadInput.at(where, "has no counter of finished requests", "query vllm:request_success_total over time")
    stamps = sorted({stamp for parts in chosen.values() for part in parts for stamp in part.stamps_s})
    steps = np.diff(stamps)
    if not len(steps):
        raise BadInput.at(where, "has one point in time: growth needs two", "use /api/v1/query_range with step=60s")
    width = float(np.median(steps))
    grid = np.arange(stamps[0], stamps[-1] + width / 2, width)
    sums = {ours: _growth(parts, grid) if parts else np.full(len(grid) - 1, np.nan) for ours, parts in chosen.items()}
    warnings = ["from counters: no joint lengths, sessions or prefixes"]
    if width > 60:
        warnings.append(f"steps of {width:g} s do not show the busiest minute: its height is a range")
    return Aggregates(
        source="Prometheus range query",
        bucket_s=width,
        start_utc=_stamp(float(grid[0])),
        warnings=tuple(warnings),
        **sums,
    )


def _one_metric(series: list[Series], names: set[str]) -> list[Series]:
    """All series of one metric: the first of our names that is there."""
    present = sorted({part.name for part in series} & names)
    return [part for part in series if present and part.name == present[0]]


def _growth(parts: list[Series], grid: Floats) -> Floats:
    total = np.zeros(len(grid) - 1)
    for part in parts:
        if len(part.stamps_s) < 2:
            continue
        steps = np.diff(part.values)
        # After a restart the counter holds what came since then.
        steps = np.where(steps < 0, part.values[1:], steps)
        grown = np.interp(grid, part.stamps_s, np.concatenate(([0.0], np.cumsum(steps))))
        total += np.diff(grown)
    return total


def _names(ours: str) -> set[str]:
    return {name.metric for name in COUNTERS[ours] if not name.labels}


def _histogram_names(ours: str) -> set[str]:
    return {name.metric for name in HISTOGRAMS[ours] if not name.labels}


def _stamp(seconds: float) -> str:
    stamp = datetime(1970, 1, 1, tzinfo=UTC) + timedelta(seconds=seconds)
    return stamp.isoformat().replace("+00:00", "Z")
