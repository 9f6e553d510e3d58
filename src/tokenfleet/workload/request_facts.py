"""What the requests say beyond lengths and minutes: groups, buckets, caches, reasoning, endings, sessions."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.trace import Floats, Ints, Observed, Trace

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LONG_INPUT_TOKENS, LONG_OUTPUT_TOKENS = 2048, 256
"""From here on a prompt or an answer counts as long in the four buckets."""

_MOST_GROUPS = 50
_LEAST_PAIRS = 2


def request_facts(trace: Trace) -> dict[str, Any]:
    """Facts about requests; what the source does not tell is left out, never 0."""
    facts: dict[str, Any] = {"length_buckets": _buckets(trace)}
    if trace.tenant is not None:
        facts["tenants"] = _groups(trace, trace.tenant, trace.tenants)
        facts["top_10_tenant_fraction"] = _top_fraction(trace.tenant)
    if trace.session is not None:
        facts["sessions"] = _sessions(trace)
    if trace.observed is not None:
        facts.update(_observed(trace, trace.observed))
    return facts


def _buckets(trace: Trace) -> dict[str, float]:
    long_in, long_out = trace.input_tokens >= LONG_INPUT_TOKENS, trace.output_tokens >= LONG_OUTPUT_TOKENS
    return {
        "short_short": float(np.mean(~long_in & ~long_out)),
        "long_short": float(np.mean(long_in & ~long_out)),
        "short_long": float(np.mean(~long_in & long_out)),
        "long_long": float(np.mean(long_in & long_out)),
    }


def _observed(trace: Trace, seen: Observed) -> dict[str, Any]:
    facts: dict[str, Any] = {}
    if seen.model is not None:
        facts["models"] = _groups(trace, seen.model, seen.models)
    if seen.label is not None:
        facts["labels"] = _groups(trace, seen.label, seen.labels)
    if seen.cached_input_tokens is not None:
        facts["cached_tokens"] = _part_of(seen.cached_input_tokens, trace.input_tokens)
    if seen.reasoning_tokens is not None:
        facts["reasoning_tokens"] = _part_of(seen.reasoning_tokens, trace.output_tokens)
    if seen.streamed is not None:
        known = seen.streamed >= 0
        facts["streamed_fraction"] = _mean(seen.streamed[known] == 1)
    if seen.finish is not None:
        facts["finish_fractions"] = _fractions(seen.finish, seen.finishes)
        facts["truncated_fraction"] = facts["finish_fractions"].get("length", 0.0)
    if seen.status is not None:
        facts["status_fractions"] = _fractions(seen.status, seen.statuses)
    for name, values in (("ttft_s", seen.ttft_s), ("e2e_s", seen.e2e_s)):
        if values is not None:
            facts[name] = _quantiles(values[~np.isnan(values)])
    return facts


def _part_of(part: Ints, whole: Ints) -> dict[str, float]:
    """Share of tokens over the rows that tell, how many those are, and quantiles."""
    known = part >= 0
    of = int(whole[known].sum(dtype=np.int64))
    share = float(part[known].sum(dtype=np.int64) / of) if of else float("nan")
    return {"fraction": share, "known_fraction": float(known.mean()), **_quantiles(part[known].astype(np.float64))}


def _groups(trace: Trace, index: Ints, names: tuple[str, ...]) -> dict[str, dict[str, float]]:
    """Requests and lengths of each group, the largest fifty first; what has no name comes under ''."""
    import polars as pl

    columns = {"group": index, "input_tokens": trace.input_tokens, "output_tokens": trace.output_tokens}
    sides = [pl.col(name) for name in ("input_tokens", "output_tokens")]
    found = (
        pl.DataFrame(columns)
        .group_by("group")
        .agg(
            pl.len().alias("request_count"),
            *(side.mean().name.suffix("_mean") for side in sides),
            *(side.quantile(0.5, "linear").name.suffix("_p50") for side in sides),
            *(side.quantile(0.95, "linear").name.suffix("_p95") for side in sides),
        )
        .sort("request_count", "group", descending=[True, False])
        .head(_MOST_GROUPS)
    )
    return {_named(row, names): row for row in found.to_dicts()}


def _named(row: dict[str, Any], names: tuple[str, ...]) -> str:
    group = int(row.pop("group"))
    return names[group] if group >= 0 else ""


def _top_fraction(tenant: Ints) -> float:
    sizes = np.sort(np.bincount(tenant[tenant >= 0]))[::-1]
    return float(sizes[:10].sum() / max(int(sizes.sum()), 1))


def _sessions(trace: Trace) -> dict[str, Any]:
    """Turns, growth of the prompt from turn to turn, and pauses between arrivals, of sessions with a name."""
    assert trace.session is not None
    rows = np.flatnonzero(trace.session >= 0)
    if not len(rows):
        return {"count": 0}
    order = rows[np.lexsort((trace.arrival_s[rows], trace.session[rows]))]
    session = trace.session[order]
    _, turns = np.unique(session, return_counts=True)
    follows = np.flatnonzero(np.diff(session) == 0)
    facts: dict[str, Any] = {"count": len(turns), "turns": _quantiles(turns.astype(np.float64))}
    if len(follows) >= _LEAST_PAIRS:
        growth = np.diff(trace.input_tokens[order].astype(np.int64))[follows]
        facts["input_growth_tokens"] = _quantiles(growth.astype(np.float64))
        facts["pause_s"] = _quantiles(np.diff(trace.arrival_s[order])[follows])
        thinking = _thinking(trace, order, follows)
        if thinking is not None:
            facts["think_s"] = _quantiles(thinking)
    return facts


def _thinking(trace: Trace, order: Longs, follows: Longs) -> Floats | None:
    """From the end of an answer to the next call, where the source tells how long answers took."""
    if trace.observed is None or trace.observed.e2e_s is None:
        return None
    ends = trace.arrival_s[order] + trace.observed.e2e_s[order]
    think = (trace.arrival_s[order][1:] - ends[:-1])[follows]
    known = think[~np.isnan(think)]
    return np.maximum(known, 0.0) if len(known) >= _LEAST_PAIRS else None


def _fractions(index: Ints, names: tuple[str, ...]) -> dict[str, float]:
    known = index[index >= 0]
    if not len(known):
        return {}
    sizes = np.bincount(known, minlength=len(names)) / len(known)
    return {name: float(sizes[place]) for place, name in enumerate(names) if sizes[place] > 0}


def _quantiles(values: Floats) -> dict[str, float]:
    if not len(values):
        return {}
    p50, p90, p95, p99 = np.quantile(values, [0.5, 0.9, 0.95, 0.99])
    return {
        "p50": float(p50),
        "p90": float(p90),
        "p95": float(p95),
        "p99": float(p99),
        "max": float(values.max()),
        "mean": float(values.mean()),
    }


def _mean(mask: Mask) -> float:
    return float(mask.mean()) if len(mask) else float("nan")
