"""What rows say beyond lengths and times, counted so that parts add up exactly: models, kinds, caches, endings."""

from collections.abc import Mapping, Sequence
from dataclasses import asdict, field
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import LengthCounts
from tokenfleet.workload.joint import add_values, count_values, summary
from tokenfleet.workload.latency_tally import LatencyTally, add_latencies, latency_facts, latency_tally

if TYPE_CHECKING:
    import polars as pl

Longs = npt.NDArray[np.int64]

_GROUPS = {"model": "models", "label": "labels"}
_PARTS = {"cached_tokens": "input_tokens", "reasoning_tokens": "output_tokens"}
NAMED_FACTS = (*_GROUPS, "finish", "status")
"""Columns that hold names."""
_LATENCIES = {"ttft": "ttft_s", "e2e": "e2e_s"}
FACT_COLUMNS = {name: name for name in (*NAMED_FACTS, *_PARTS, "streamed")} | _LATENCIES
"""Role of a column -> its canonical name."""
_MOST_GROUPS, _MOST_COUNTED = 50, 2000


Named = tuple[npt.NDArray[np.integer[Any]], Sequence[str]]
"""Place of each row's name, and the names: each once, '' for unknown."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PartOf:
    """Tokens that are part of others, over the rows that tell."""

    known_count: int
    whole_tokens: int
    values: LengthCounts


@dataclass(frozen=True, slots=True, kw_only=True)
class FactTally:
    """Counts over some requests; what a file has no column for is not in them."""

    request_count: int
    groups: Mapping[str, Mapping[str, tuple[LengthCounts, LengthCounts]] | None]
    """Input and output lengths by name; ``None`` when there are too many names."""
    parts: Mapping[str, PartOf]
    names: Mapping[str, Mapping[str, int]]
    """Rows by finish reason, status, and whether they streamed."""
    latencies: Mapping[str, LatencyTally] = field(default_factory=dict)


def fact_tally(
    tokens: tuple[Longs, Longs], named: Mapping[str, Named], columns: Mapping[str, "pl.Series"]
) -> FactTally:
    """Count rows.

    Args:
        tokens: Input and output tokens of each row.
        named: Columns of names, by canonical name.
        columns: The other columns of :data:`FACT_COLUMNS`; any may be missing.
    """
    names = {name: _by_name(*named[name]) for name in NAMED_FACTS if name in named and name not in _GROUPS}
    if "streamed" in columns:
        yes, known = int(columns["streamed"].sum() or 0), len(columns["streamed"]) - columns["streamed"].null_count()
        names["streamed"] = {"true": yes, "false": known - yes}
    whole = dict(zip(("input_tokens", "output_tokens"), tokens, strict=True))
    return FactTally(
        request_count=len(tokens[0]),
        groups={title: _grouped(*named[name], tokens) for name, title in _GROUPS.items() if name in named},
        parts={name: _part_of(columns[name], whole[of]) for name, of in _PARTS.items() if name in columns},
        names=names,
        latencies={name: latency_tally(columns[name]) for name in _LATENCIES.values() if name in columns},
    )


def _by_name(place: npt.NDArray[np.integer[Any]], names: Sequence[str]) -> dict[str, int]:
    counts = np.bincount(place, minlength=len(names)).tolist()
    return {name: count for name, count in zip(names, counts, strict=True) if count and name}


def _grouped(
    place: npt.NDArray[np.integer[Any]], names: Sequence[str], tokens: tuple[Longs, Longs]
) -> dict[str, tuple[LengthCounts, LengthCounts]] | None:
    sizes = np.bincount(place, minlength=len(names))
    if np.count_nonzero(sizes) > _MOST_COUNTED:
        return None
    # Sixteen bits sort in one pass over the rows.
    order = np.argsort(place.astype(np.uint16 if len(names) < 2**16 else np.int64), kind="stable")
    sides = [side[order] for side in tokens]
    ends = np.cumsum(sizes)
    return {
        name: (count_values(sides[0][end - size : end]), count_values(sides[1][end - size : end]))
        for name, size, end in zip(names, sizes.tolist(), ends.tolist(), strict=True)
        if size
    }


def _part_of(part: "pl.Series", whole: Longs) -> PartOf:
    values = part.fill_null(-1).to_numpy()
    known = values >= 0
    return PartOf(
        known_count=int(known.sum()), whole_tokens=int(whole[known].sum()), values=count_values(values[known])
    )


def add_facts(left: FactTally | None, right: FactTally | None) -> FactTally | None:
    """Counts of both parts together; all parts of one file have the same columns."""
    if left is None or right is None:
        return left or right
    names: dict[str, dict[str, int]] = {}
    for side in (left.names, right.names):
        for title, counts in side.items():
            mine = names.setdefault(title, {})
            for name, count in counts.items():
                mine[name] = mine.get(name, 0) + count
    parts = dict(left.parts)
    for name, part in right.parts.items():
        parts[name] = _add_part(parts[name], part) if name in parts else part
    latencies = dict(left.latencies)
    for name, tally in right.latencies.items():
        latencies[name] = add_latencies(latencies[name], tally) if name in latencies else tally
    titles = dict.fromkeys((*left.groups, *right.groups))
    return FactTally(
        request_count=left.request_count + right.request_count,
        groups={title: _add_groups(left, right, title) for title in titles},
        parts=parts,
        names=names,
        latencies=latencies,
    )


def _add_part(left: PartOf, right: PartOf) -> PartOf:
    return PartOf(
        known_count=left.known_count + right.known_count,
        whole_tokens=left.whole_tokens + right.whole_tokens,
        values=add_values(left.values, right.values),
    )


def _add_groups(
    left: FactTally, right: FactTally, title: str
) -> Mapping[str, tuple[LengthCounts, LengthCounts]] | None:
    one, two = left.groups.get(title, {}), right.groups.get(title, {})
    if one is None or two is None:
        return None
    found = dict(one)
    for name, (given, made) in two.items():
        before = found.get(name)
        found[name] = (given, made) if before is None else (add_values(before[0], given), add_values(before[1], made))
    return found if len(found) <= _MOST_COUNTED else None


def facts_of(tally: FactTally) -> dict[str, Any]:
    """The facts, under the names that whole traces give them; what no row tells is left out."""
    facts: dict[str, Any] = {}
    for title, groups in tally.groups.items():
        if groups and set(groups) != {""}:
            facts[title] = _largest(groups)
    for name, part in tally.parts.items():
        if part.known_count:
            facts[name] = _shares(part, tally.request_count)
    for name, counts in tally.names.items():
        total = sum(counts.values())
        if not total:
            continue
        if name == "streamed":
            facts["streamed_fraction"] = counts.get("true", 0) / total
            continue
        facts[f"{name}_fractions"] = {each: count / total for each, count in counts.items()}
        if name == "finish":
            facts["truncated_fraction"] = facts["finish_fractions"].get("length", 0.0)
    return facts | {name: found for name, tally in tally.latencies.items() if (found := latency_facts(tally))}


def _largest(groups: Mapping[str, tuple[LengthCounts, LengthCounts]]) -> dict[str, dict[str, float]]:
    sizes = {name: int(given.counts.sum()) for name, (given, _) in groups.items()}
    found = {}
    for name in sorted(groups, key=lambda each: (-sizes[each], each))[:_MOST_GROUPS]:
        facts: dict[str, float] = {"request_count": sizes[name]}
        summaries = [summary(side) for side in groups[name]]
        for key, shown in (("mean", "mean"), ("p50", "p50"), ("p95", "p95")):
            for side, each in zip(("input", "output"), summaries, strict=True):
                facts[f"{side}_tokens_{shown}"] = float(getattr(each, key))
        found[name] = facts
    return found


def _shares(part: PartOf, requests: int) -> dict[str, float]:
    served = float(np.dot(part.values.values, part.values.counts))
    share = served / part.whole_tokens if part.whole_tokens else float("nan")
    return {"fraction": share, "known_fraction": part.known_count / requests, **asdict(summary(part.values))}
