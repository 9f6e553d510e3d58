"""A metrics page of any engine under one set of names: counts since the start, gauges, histograms."""

import math
from collections.abc import Iterable, Mapping
from pathlib import Path

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass
from tokenfleet.workload.formats.source import open_source
from tokenfleet.workload.metrics.exposition import Sample, read_text
from tokenfleet.workload.metrics.names import COUNTERS, ENGINES, GAUGES, HISTOGRAMS, Name
from tokenfleet.workload.metrics.otlp import is_otlp, read_otlp


@dataclass(frozen=True, slots=True, kw_only=True)
class Histogram:
    """Counts between bucket edges, which are all that a quantile can be known by."""

    edges: tuple[float, ...]
    """Upper edges, rising; the last may be infinite."""
    counts: tuple[float, ...]
    """Observations in each bucket, not cumulative."""
    total: float
    """Sum of all observations."""

    @property
    def count(self) -> float:
        """Observations."""
        return float(sum(self.counts))

    @property
    def mean(self) -> float:
        """Exact mean; NaN without observations."""
        return self.total / self.count if self.count else math.nan

    def quantile_range(self, fraction: float) -> tuple[float, float]:
        """Between which edges the quantile lies. Buckets say no more; a single number would be invented.

        Args:
            fraction: 0 to 1.

        Returns:
            Lower and upper edge; NaN without observations. Below the first edge the lower one is 0.
        """
        if not self.count:
            return math.nan, math.nan
        place, upto, low = fraction * self.count, 0.0, 0.0
        for edge, count in zip(self.edges, self.counts, strict=True):
            upto += count
            if count and upto >= place:
                return low, edge
            low = edge
        return low, self.edges[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """One scrape. What a page does not have is missing from the mappings, never 0."""

    engine: str
    models: tuple[str, ...]
    gauges: Mapping[str, float]
    counters: Mapping[str, float]
    histograms: Mapping[str, Histogram]
    names: Mapping[str, str]
    """Our name -> the metric that was read for it."""
    warnings: tuple[str, ...]


def read_metrics(path: str | Path) -> MetricsSnapshot:
    """Read a saved metrics page (``curl http://engine:8000/metrics > page.prom``), or OpenTelemetry metrics.

    Series of several engines, ranks and label values are added up; fractions are averaged. Renamed metrics are read
    and named in the warnings. A page has no single requests: no joint lengths, no sessions, no prefixes.

    Raises:
        BadInput: no such file, or no metric of a known engine in it.
    """
    source = open_source(Path(path))
    text = source.content().decode("utf-8", errors="replace")
    samples, broken = read_otlp(text, where=source.where) if is_otlp(source.head) else read_text(text)
    return snapshot(samples, where=source.where, broken=broken)


def snapshot(samples: Iterable[Sample], *, where: str, broken: int = 0) -> MetricsSnapshot:
    """One scrape's samples under our names.

    Raises:
        BadInput: none of them is of a known engine.
    """
    by_name: dict[str, list[Sample]] = {}
    for sample in samples:
        by_name.setdefault(sample.name, []).append(sample)
    engine = _engine(by_name)
    if engine is None:
        raise BadInput.at(where, "holds no metric of a known engine", f"known: {', '.join(ENGINES)}")
    names: dict[str, str] = {}
    warnings = [f"{broken} lines are no samples"] if broken else []
    gauges = _values(by_name, GAUGES, names, warnings, averaged=True)
    counters = _values(by_name, COUNTERS, names, warnings, averaged=False)
    histograms = _histograms(by_name, names, warnings)
    _hits(gauges, counters)
    warnings += _doubts(engine, by_name, histograms)
    models = {label for samples_ in by_name.values() for label in _model_of(samples_)}
    return MetricsSnapshot(
        engine=engine,
        models=tuple(sorted(models)),
        gauges=gauges,
        counters=counters,
        histograms=histograms,
        names=names,
        warnings=tuple(warnings),
    )


def between(first: MetricsSnapshot, second: MetricsSnapshot) -> MetricsSnapshot:
    """What happened from one scrape to the next: counters and histograms subtracted, gauges of the second.

    A counter that fell was reset by a restart: what it counted since then is taken, and said.

    Raises:
        BadInput: scrapes of different engines.
    """
    if first.engine != second.engine:
        raise BadInput.at("metrics", f"are of {first.engine} and {second.engine}", "compare scrapes of one engine")
    reset = [name for name, value in second.counters.items() if value < first.counters.get(name, 0.0)]
    counters = {
        name: value if name in reset else value - first.counters.get(name, 0.0)
        for name, value in second.counters.items()
    }
    histograms = {name: _difference(first.histograms.get(name), later) for name, later in second.histograms.items()}
    warnings = list(second.warnings)
    if reset:
        warnings.append(f"the engine restarted in between ({', '.join(sorted(reset))} fell): counted since the restart")
    gauges = dict(second.gauges)
    if counters.get("prefix_queries_tokens"):
        gauges["prefix_hit_fraction"] = counters.get("prefix_hits_tokens", 0.0) / counters["prefix_queries_tokens"]
    return MetricsSnapshot(
        engine=second.engine,
        models=second.models,
        gauges=gauges,
        counters=counters,
        histograms=histograms,
        names=second.names,
        warnings=tuple(warnings),
    )


def _engine(by_name: Mapping[str, list[Sample]]) -> str | None:
    counts = {engine: sum(name.startswith(prefixes) for name in by_name) for engine, prefixes in ENGINES.items()}
    best = max(counts, key=lambda engine: counts[engine])
    return best if counts[best] else None


def _values(
    by_name: Mapping[str, list[Sample]],
    wanted: Mapping[str, tuple[Name, ...]],
    names: dict[str, str],
    warnings: list[str],
    *,
    averaged: bool,
) -> dict[str, float]:
    found: dict[str, float] = {}
    for ours, choices in wanted.items():
        for choice in choices:
            values = [sample.value * choice.scale for sample in by_name.get(choice.metric, []) if _fits(sample, choice)]
            if values:
                mean = averaged and ours.endswith("_fraction")
                found[ours] = sum(values) / (len(values) if mean else 1)
                _note(ours, choice, choices, names, warnings)
                break
    return found


def _fits(sample: Sample, name: Name) -> bool:
    return all(sample.labels.get(label) == value for label, value in name.labels)


def _note(ours: str, choice: Name, choices: tuple[Name, ...], names: dict[str, str], warnings: list[str]) -> None:
    names[ours] = choice.metric
    if choice.old:
        engine = choice.metric.split(":")[0].split("_")[0]
        now = next((other.metric for other in choices if not other.old and other.metric.startswith(engine)), None)
        warnings.append(f"{choice.metric} is an old name" + (f"; today it is {now}" if now else " and gone today"))


def _histograms(
    by_name: Mapping[str, list[Sample]], names: dict[str, str], warnings: list[str]
) -> dict[str, Histogram]:
    found = {}
    for ours, choices in HISTOGRAMS.items():
        for choice in choices:
            buckets, sums = (
                [sample for sample in by_name.get(choice.metric + end, []) if _fits(sample, choice)]
                for end in ("_bucket", "_sum")
            )
            if buckets:
                found[ours] = _histogram(buckets, sums)
                _note(ours, choice, choices, names, warnings)
                break
    return found


def _histogram(buckets: list[Sample], sums: list[Sample]) -> Histogram:
    upto: dict[float, float] = {}
    for sample in buckets:
        try:
            edge = float(sample.labels.get("le", ""))
        except ValueError:
            continue
        upto[edge] = upto.get(edge, 0.0) + sample.value
    edges = tuple(sorted(upto))
    steps, before = [], 0.0
    for edge in edges:
        steps.append(max(upto[edge] - before, 0.0))
        before = max(before, upto[edge])
    return Histogram(edges=edges, counts=tuple(steps), total=sum(sample.value for sample in sums))


def _difference(first: Histogram | None, later: Histogram) -> Histogram:
    if first is None or first.edges != later.edges or first.count > later.count:
        return later
    counts = tuple(max(after - before, 0.0) for before, after in zip(first.counts, later.counts, strict=True))
    return Histogram(edges=later.edges, counts=counts, total=later.total - first.total)


def _hits(gauges: dict[str, float], counters: Mapping[str, float]) -> None:
    """Hits over queries, both in tokens, say more than a gauge of the last moments."""
    queries = counters.get("prefix_queries_tokens")
    if queries:
        gauges["prefix_hit_fraction"] = counters.get("prefix_hits_tokens", 0.0) / queries


def _doubts(engine: str, by_name: Mapping[str, list[Sample]], histograms: Mapping[str, Histogram]) -> list[str]:
    """What a reader of these numbers must know."""
    doubts = ["metrics hold no single requests: joint lengths, sessions and prefixes stay unknown"]
    if engine == "vLLM":
        if "vllm:prompt_tokens_by_source_total" not in by_name:
            doubts.append("prompt_tokens includes cache hits and does not say how many were computed")
        doubts.append("prompt_tokens counts the prompt once per choice (n > 1)")
        queue = histograms.get("queue_s")
        if queue and queue.edges and queue.edges[0] >= 0.3:
            doubts.append(f"queue and e2e buckets start at {queue.edges[0]:g} s: quantiles below are not known")
    if engine == "llama.cpp":
        doubts.append("prompt_tokens counts processed tokens only: cached ones are not in it")
    if engine == "SGLang":
        doubts.append("finished_count adds streamed and plain requests")
    return doubts


_MODEL_LABELS = ("model_name", "model", "gen_ai.request.model", "gen_ai_request_model")


def _model_of(samples: list[Sample]) -> set[str]:
    return {label for sample in samples for key in _MODEL_LABELS if (label := sample.labels.get(key)) is not None}
