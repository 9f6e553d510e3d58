"""What the requests say beyond lengths and minutes: groups, buckets, caches, reasoning, endings, sessions."""

from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.trace import Ints, Observed, Trace
from tokenfleet.workload.joint import bins_of, count_pairs, fixed_edges
from tokenfleet.workload.session_shape import chains_of, quantiles, session_facts
from tokenfleet.workload.tally import NS

Longs = npt.NDArray[np.int64]
Mask = npt.NDArray[np.bool_]

LONG_INPUT_TOKENS, LONG_OUTPUT_TOKENS = 2048, 256
"""From here on a prompt or an answer counts as long in the four buckets."""

_MOST_GROUPS = 50


def request_facts(trace: Trace) -> dict[str, Any]:
    """Facts about requests; what the source does not tell is left out, never 0."""
    facts: dict[str, Any] = {
        "length_buckets": buckets(count_pairs(trace.input_tokens, trace.output_tokens, fixed_edges()))
    }
    if trace.tenant is not None:
        facts["tenants"] = _groups(trace, trace.tenant, trace.tenants)
        facts["top_10_tenant_fraction"] = _top_fraction(trace.tenant)
    if trace.session is not None:
        facts["sessions"] = _sessions(trace)
    if trace.observed is not None:
        facts.update(_observed(trace, trace.observed))
    return facts


def buckets(pairs: Longs) -> dict[str, float]:
    """Shares of short and long prompts and answers, from the joint length table: both limits are edges of it."""
    place = [int(bins_of(np.array([limit]))[0]) for limit in (LONG_INPUT_TOKENS, LONG_OUTPUT_TOKENS)]
    total = int(pairs.sum())
    below, above = slice(None, place[0]), slice(place[0], None)
    short, long = slice(None, place[1]), slice(place[1], None)
    return {
        "short_short": float(pairs[below, short].sum() / total),
        "long_short": float(pairs[above, short].sum() / total),
        "short_long": float(pairs[below, long].sum() / total),
        "long_long": float(pairs[above, long].sum() / total),
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
            facts[name] = quantiles(values[~np.isnan(values)])
    return facts


def _part_of(part: Ints, whole: Ints) -> dict[str, float]:
    """Share of tokens over the rows that tell, how many those are, and quantiles."""
    known = part >= 0
    of = int(whole[known].sum(dtype=np.int64))
    share = float(part[known].sum(dtype=np.int64) / of) if of else float("nan")
    return {"fraction": share, "known_fraction": float(known.mean()), **quantiles(part[known].astype(np.float64))}


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
    """Sessions with a name."""
    assert trace.session is not None
    rows = np.flatnonzero(trace.session >= 0)
    arrival_ns = np.rint(trace.arrival_s[rows] * NS).astype(np.int64)
    columns = (column[rows].astype(np.int64) for column in (trace.session, trace.input_tokens, trace.output_tokens))
    session, given, made = columns
    chains, order = chains_of(session, arrival_ns, given, made)
    e2e_s = None if trace.observed is None or trace.observed.e2e_s is None else trace.observed.e2e_s[rows[order]]
    return session_facts(chains, e2e_s)


def _fractions(index: Ints, names: tuple[str, ...]) -> dict[str, float]:
    known = index[index >= 0]
    if not len(known):
        return {}
    sizes = np.bincount(known, minlength=len(names)) / len(known)
    return {name: float(sizes[place]) for place, name in enumerate(names) if sizes[place] > 0}


def _mean(mask: Mask) -> float:
    return float(mask.mean()) if len(mask) else float("nan")
