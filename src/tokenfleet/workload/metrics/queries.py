"""What to ask a Prometheus server, and what its answers say. Asking is not done here: it needs a socket."""

import math
from collections.abc import Iterable, Sequence
from typing import Any

from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.records import dataclass
from tokenfleet.workload.metrics.aggregates import Aggregates, aggregates_of, columns_of_query
from tokenfleet.workload.metrics.exposition import Sample, Series, read_query
from tokenfleet.workload.metrics.names import ENGINES
from tokenfleet.workload.metrics.snapshot import MetricsSnapshot, snapshot
from tokenfleet.workload.spelling import nearest

MOST_POINTS = 11_000
"""Points per series that a server answers with at most."""


@dataclass(frozen=True, slots=True, kw_only=True)
class RangeQuery:
    """One question to ``/api/v1/query_range``."""

    expression: str
    start_s: float
    """Seconds since 1970."""
    end_s: float
    step_s: float

    @property
    def parameters(self) -> dict[str, str]:
        """The question as the server wants it."""
        stamps = {"start": self.start_s, "end": self.end_s, "step": self.step_s}
        return {"query": self.expression, **{name: f"{value:.10g}" for name, value in stamps.items()}}


def prometheus_queries(
    engine: str, *, start_s: float, end_s: float, step_s: float = 60.0, labels: str = ""
) -> tuple[RangeQuery, ...]:
    """Counters that tell the traffic of one engine, old names and new ones, in spans that a server answers.

    Counters are asked for as they are, and not as rates: their growth is exact, and restarts are seen.

    Args:
        engine: One of the engines whose metrics are known, such as ``vLLM``; upper and lower case are one.
        start_s: Seconds since 1970.
        end_s: The same.
        step_s: Seconds between two points; more than 60 does not show the busiest minute.
        labels: Further label matchers, such as ``namespace="prod"``.

    Raises:
        BadInput: an engine without known metrics, or a span that is none; all problems at once.
    """
    problems = []
    prefixes = _prefixes(engine)
    if prefixes is None:
        mend = nearest(engine, ENGINES) or f"known: {', '.join(ENGINES)}"
        problems.append(Problem("engine", f"no metrics of '{engine}' are known", mend))
    if not 1 <= step_s <= 86_400:
        problems.append(Problem("step", f"is {step_s:g} s", "give 1 s to a day; 60 s shows the busiest minute"))
    if not max(step_s, 1.0) <= end_s - start_s < math.inf:
        problems.append(Problem("end", "does not lie a step after the start", "give a longer span"))
    if problems or prefixes is None:
        raise BadInput(problems)
    names = sorted({name for column in columns_of_query().values() for name in column if name.startswith(prefixes)})
    matchers = ", ".join([f'__name__=~"{"|".join(names)}"', *([labels] if labels else [])])
    reach_s = (MOST_POINTS - 1) * step_s
    count = max(1, math.ceil((end_s - start_s) / reach_s))
    return tuple(
        RangeQuery(
            expression=f"{{{matchers}}}",
            start_s=start_s + place * reach_s,
            end_s=min(start_s + (place + 1) * reach_s, end_s),
            step_s=step_s,
        )
        for place in range(count)
    )


def _prefixes(engine: str) -> tuple[str, ...] | None:
    plain = {name.lower(): prefixes for name, prefixes in ENGINES.items()}
    return plain.get(engine.lower())


def aggregates_of_answers(answers: Iterable[Any], *, where: str) -> Aggregates:
    """Growth per step from the answers to :func:`prometheus_queries`, in any order.

    Args:
        answers: The JSON of each, as Python values.
        where: How errors name the server.

    Raises:
        BadInput: a failed query, or no counter of finished requests among the series.
    """
    series = [part for answer in answers for part in read_query(answer, where=where)]
    return aggregates_of(_joined(series), where)


def snapshot_of_answer(answer: Any, *, where: str) -> MetricsSnapshot:  # noqa: ANN401 - any JSON
    """One scrape from the answer to an instant query such as ``{__name__=~"vllm:.*"}``.

    Raises:
        BadInput: a failed query, or no metric of a known engine.
    """
    found = read_query(answer, where=where)
    return snapshot([Sample(part.name, part.labels, part.values[-1]) for part in found if part.values], where=where)


def _joined(series: Sequence[Series]) -> list[Series]:
    """Pieces of one series, asked for span by span, as one; a point at a border stands in both."""
    pieces: dict[tuple[str, tuple[tuple[str, str], ...]], dict[float, float]] = {}
    for part in series:
        key = part.name, tuple(sorted(part.labels.items()))
        pieces.setdefault(key, {}).update(zip(part.stamps_s, part.values, strict=True))
    return [
        Series(name, dict(labels), tuple(sorted(points)), tuple(points[stamp] for stamp in sorted(points)))
        for (name, labels), points in pieces.items()
    ]
