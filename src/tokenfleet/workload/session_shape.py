"""What sessions are like: turns, growth, pauses, and what their prompts repeat."""

from dataclasses import replace
from typing import Any

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Floats, Ints, PrefixTree, PromptShape, SessionShape, Trace
from tokenfleet.workload.joint import bins_of, count_values
from tokenfleet.workload.prefixes import common_nodes, shared_tokens, units_of
from tokenfleet.workload.session_tally import SessionRows
from tokenfleet.workload.tally import NS

Longs = npt.NDArray[np.int64]

STEP_BASE, STEP_ZERO = 1000, 500
PAUSE_STEPS_PER_OCTAVE = 8
_LEAST_PAIRS = 2
_MOST_TEXTS = 50
_FEWEST_UNITS = 20
"""Texts that so many sessions begin with are listed one by one; rarer ones by length."""


@dataclass(frozen=True, slots=True)
class Chains:
    """Requests of sessions, session by session and in order of time."""

    session: Longs
    arrival_ns: Longs
    input_tokens: Longs
    output_tokens: Longs

    @property
    def follows(self) -> Longs:
        """Places of requests that the next one continues."""
        return np.flatnonzero(np.diff(self.session) == 0)

    @property
    def turns(self) -> Longs:
        """Requests of each session."""
        return np.diff(np.flatnonzero(np.diff(self.session, prepend=-1, append=-2)))

    @property
    def opens(self) -> Longs:
        """Places of first requests."""
        return np.flatnonzero(np.diff(self.session, prepend=-1))


def chains_of(session: Longs, arrival_ns: Longs, input_tokens: Longs, output_tokens: Longs) -> tuple[Chains, Longs]:
    """Requests of sessions in order, and where each came from.

    Args:
        session: At least 0.
        arrival_ns: Any order.
        input_tokens: Per request.
        output_tokens: Per request.
    """
    order = np.lexsort((output_tokens, input_tokens, arrival_ns, session))
    return Chains(session[order], arrival_ns[order], input_tokens[order], output_tokens[order]), order


def session_shape(chains: Chains, alone_input: Longs, *, labelled: bool) -> SessionShape:
    """The shape of sessions.

    Args:
        chains: Their requests; at least one.
        alone_input: Input tokens of requests outside sessions.
        labelled: Whether the source names sessions.
    """
    given, follows = chains.input_tokens, chains.follows
    growth = np.diff(given)[follows]
    signed = np.where(growth < 0, -1, 1) * bins_of(np.abs(growth))
    steps = np.asarray(bins_of(given[follows]) * STEP_BASE + signed + STEP_ZERO, dtype=np.int64)
    return SessionShape(
        request_count=len(given),
        labelled=labelled,
        turns=count_values(chains.turns),
        opening_input_bins=count_values(bins_of(given[chains.opens])),
        alone_input_bins=count_values(bins_of(alone_input)),
        steps=count_values(steps),
        pause_bins=count_values(pause_bins(np.diff(chains.arrival_ns)[follows])),
        growth_output_correlation=_together(growth, chains.output_tokens[follows]),
    )


def _together(left: Longs, right: Longs) -> float:
    """Rank correlation; 0 where one of the two does not vary."""
    if len(left) < _FEWEST_UNITS or left.min() == left.max() or right.min() == right.max():
        return 0.0
    ranks = [np.unique(side, return_inverse=True, return_counts=True)[1:] for side in (left, right)]
    middles = [(np.cumsum(counts) - counts / 2)[place] for place, counts in ranks]
    return float(np.corrcoef(middles[0], middles[1])[0, 1])


def described_rows(rows: SessionRows) -> tuple[SessionShape | None, dict[str, Any]]:
    """The shape and the facts of sessions that were counted in parts; of a sample where there were too many."""
    chains, _ = chains_of(rows.session, rows.arrival_ns, rows.input_tokens, rows.output_tokens)
    facts = session_facts(chains, None)
    if not len(chains.session):
        return None, facts
    shape = replace(session_shape(chains, np.zeros(0, dtype=np.int64), labelled=True), request_count=rows.request_count)
    if rows.level:
        facts |= {"count": facts["count"] << rows.level, "looked_at_fraction": 0.5**rows.level}
    return replace(shape, alone_input_bins=rows.alone_input_bins), facts


def session_facts(chains: Chains, e2e_s: Floats | None) -> dict[str, Any]:
    """Turns, growth of the prompt from turn to turn, and pauses.

    Args:
        chains: Requests of sessions.
        e2e_s: How long each answer took, NaN where unknown; think times need it.
    """
    if not len(chains.session):
        return {"count": 0}
    facts: dict[str, Any] = {"count": len(chains.turns), "turns": quantiles(chains.turns)}
    follows = chains.follows
    if len(follows) >= _LEAST_PAIRS:
        facts["input_growth_tokens"] = quantiles(np.diff(chains.input_tokens)[follows])
        facts["pause_s"] = quantiles(np.diff(chains.arrival_ns)[follows], NS)
        if e2e_s is not None:
            # From the end of an answer to the next call.
            think = (np.diff(chains.arrival_ns) / NS - e2e_s[:-1])[follows]
            known = think[~np.isnan(think)]
            if len(known) >= _LEAST_PAIRS:
                facts["think_s"] = quantiles(np.maximum(known, 0.0))
    return facts


def quantiles(values: Floats | Longs, unit: float = 1) -> dict[str, float]:
    """Quantiles, largest and mean, in units; empty when there are no values."""
    if not len(values):
        return {}
    found = dict(zip(("p50", "p90", "p95", "p99"), np.quantile(values, [0.5, 0.9, 0.95, 0.99]), strict=True))
    found |= {"max": values.max(), "mean": values.mean()}
    return {name: float(value / unit) for name, value in found.items()}


def pause_bins(pause_ns: Longs) -> Longs:
    """Bin of each pause: eight per doubling of milliseconds."""
    ms = np.maximum(pause_ns // 1_000_000, 1)
    return np.asarray(np.floor(PAUSE_STEPS_PER_OCTAVE * np.log2(ms) + 1e-9), dtype=np.int64)


def shapes_of(trace: Trace) -> tuple[SessionShape | None, PromptShape | None]:
    """Sessions and shared prompts of a trace; ``None`` where it does not tell."""
    has_tree = trace.prefixes is not None and trace.prefix_node is not None and len(trace.prefixes.parent) > 0
    if trace.session is None and not has_tree:
        return None, None
    unit = units_of(trace)
    labelled = trace.session is not None
    inside = trace.session >= 0 if trace.session is not None else np.bincount(unit)[unit] > 1
    places = np.flatnonzero(inside)
    if not len(places):
        return None, None if not has_tree else _prompts(trace, unit, places)
    arrival_ns = np.rint(trace.arrival_s * NS).astype(np.int64)
    chains, order = chains_of(
        unit[places] if trace.session is None else trace.session[places].astype(np.int64),
        arrival_ns[places],
        trace.input_tokens[places].astype(np.int64),
        trace.output_tokens[places].astype(np.int64),
    )
    shape = session_shape(chains, trace.input_tokens[~inside].astype(np.int64), labelled=labelled)
    return shape, _prompts(trace, unit, places[order]) if has_tree else None


def _prompts(trace: Trace, unit: Longs, ordered: Longs) -> PromptShape:
    """What prompts share; ``ordered`` are the requests of sessions, session by session."""
    tree, node = trace.prefixes, trace.prefix_node
    assert tree is not None
    assert node is not None
    depth = np.append(tree.depth_tokens, 0)
    given = trace.input_tokens.astype(np.int64)
    opening = np.unique(unit, return_index=True)[1]
    common = _common_above(tree, node[opening].astype(np.int64), common_nodes(tree, node, unit))
    shared = np.minimum(depth[common], given[opening])
    served = np.minimum(shared_tokens(tree, node, trace.input_tokens)[opening], shared)
    return PromptShape(
        unit_count=len(opening),
        **_texts(common, shared, served),
        repeated_percents=count_values(_repeated(trace, tree, node, depth, ordered)),
    )


def _common_above(tree: PrefixTree, node: Longs, common: npt.NDArray[np.bool_]) -> Longs:
    """The deepest node at or above each that several units carry; -1 for none."""
    parent, known = np.append(tree.parent, -1).astype(np.int64), np.append(common, True)
    while len(climbing := np.flatnonzero(~known[node])):
        node[climbing] = parent[node[climbing]]
    return node


def _texts(common: Longs, shared: Longs, served: Longs) -> dict[str, Longs]:
    """Common beginnings: the frequent ones one by one, the rare ones by length.

    Of rare ones so many texts are assumed as bring the units that share them as many tokens as they were served.
    """
    has = (common >= 0) & (shared > 0)
    names, place, uses = np.unique(common[has], return_inverse=True, return_counts=True)
    tokens, got = shared[has], served[has]
    often = np.argsort(-uses, kind="stable")[:_MOST_TEXTS]
    often = often[uses[often] >= _FEWEST_UNITS]
    listed = np.isin(place, often)
    found = [(int(np.median(tokens[place == name])), 1, int(uses[name])) for name in often.tolist()]
    rare, rare_got = tokens[~listed], got[~listed]
    bins = bins_of(rare)
    for each in np.unique(bins).tolist():
        mine = bins == each
        mean, units = float(rare[mine].mean()), int(mine.sum())
        found.append(
            (max(round(mean), 1), min(max(1, round(units - float(rare_got[mine].sum()) / mean)), units), units)
        )
    columns = np.array(sorted(found), dtype=np.int64).reshape(-1, 3)
    assert len(names) >= len(often)
    return {"shared_tokens": columns[:, 0], "shared_texts": columns[:, 1], "shared_units": columns[:, 2]}


def _repeated(trace: Trace, tree: PrefixTree, node: Ints, depth: Longs, ordered: Longs) -> Longs:
    """Per later request of a session: percent of what came before, or of its prompt if shorter, that it repeats."""
    unit = units_of(trace) if trace.session is None else trace.session.astype(np.int64)
    follows = np.flatnonzero(np.diff(unit[ordered]) == 0)
    before, now = ordered[follows], ordered[follows + 1]
    given = trace.input_tokens.astype(np.int64)
    meeting = _meeting(tree, node[before].astype(np.int64), node[now].astype(np.int64))
    could = np.minimum(given[before] + trace.output_tokens[before], given[now])
    repeated = np.minimum(depth[meeting], could)
    return np.asarray(np.rint(100 * repeated / np.maximum(could, 1)), dtype=np.int64)


def _meeting(tree: PrefixTree, left: Longs, right: Longs) -> Longs:
    """The deepest node on both paths; -1 for none. A parent comes before its children, so the later node climbs."""
    parent = np.append(tree.parent, -1).astype(np.int64)
    while len(apart := np.flatnonzero(left != right)):
        later = left[apart] > right[apart]
        left[apart[later]] = parent[left[apart[later]]]
        right[apart[~later]] = parent[right[apart[~later]]]
    return left
