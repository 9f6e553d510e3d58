"""The same traffic, more or less of it; and the stretch of it that a plan is made for."""

from dataclasses import replace
from functools import cached_property

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import Bools, Ints, Observed, PrefixTree, Trace, rows_of
from tokenfleet.workload.arrivals import MINUTE_S
from tokenfleet.workload.prefixes import common_nodes, renumbered, units_of
from tokenfleet.workload.streams import stream
from tokenfleet.workload.tally import tally_of, whole_minutes

Longs = npt.NDArray[np.int64]

JITTER_S = 5.0
"""Copies come at most this much before or after their original: near enough to keep the minute's load."""


def grow(trace: Trace, factor: float) -> Trace:
    """Demand times ``factor``, on the same clock.

    Growth means more users who behave as today's do, so whole sessions are added (or left out), and hours, think times
    and lengths stay. Which ones is dealt evenly over time, so the busiest minute and the mix of lengths scale with the
    rest. A copy comes up to 5 seconds before or after its original. Its private tokens are its own: it shares with
    others only what several sessions shared before, such as system prompts. Where the trace has no sessions, requests
    that continue one another in the prefix tree below its roots stay together, and all others stand alone.

    Args:
        trace: Any trace.
        factor: Above 0; 1 gives the trace back, 1.3 is 30 % more.

    Raises:
        BadInput: a factor of 0 or less, above 1,000, or so small that no request is left.
    """
    return Grower(trace).grown(factor)


def repeated(trace: Trace, times: int) -> Trace:
    """As :func:`repeated_with_rows`, the trace alone."""
    return repeated_with_rows(trace, times)[0]


def repeated_with_rows(trace: Trace, times: int) -> tuple[Trace, Longs]:
    """The same demand ``times`` times, one after the other, each beginning with a whole minute.

    Those who come again are other people: as in :func:`grow`, they share with the first ones only what several
    sessions shared before, such as system prompts.

    Args:
        trace: Any trace.
        times: 1 or more.

    Returns:
        The new trace, and of each of its requests the row of ``trace`` that it is, or behaves as.

    Raises:
        BadInput: more than 1,000 times.
    """
    if times == 1:
        return trace, np.arange(trace.request_count)
    grown, copy, rows = Grower(trace).grown_with_rows(float(times))
    period_s = max(1.0, np.ceil(trace.duration_s / MINUTE_S)) * MINUTE_S
    arrival = grown.arrival_s + copy * period_s
    when = np.argsort(arrival, kind="stable")
    return replace(rows_of(grown, when), arrival_s=arrival[when]), rows[when]


class Grower:
    """A trace that is made more or less of several times: who stays together is found once."""

    def __init__(self, trace: Trace) -> None:
        """Nothing is worked out before it is needed."""
        self._trace = trace

    def grown(self, factor: float) -> Trace:
        """As :func:`grow` does."""
        return self.grown_with_rows(factor)[0]

    def grown_with_rows(self, factor: float) -> tuple[Trace, Longs, Longs]:
        """The same; which copy each request is, 0 the original, on its own time; and of which row of the trace."""
        trace = self._trace
        if not 0 < factor <= 1000:
            mend = "give a factor above 0 and up to 1,000, such as 1.3 for 30 % more"
            raise BadInput.at("growth", f"is {factor:g}", mend)
        if factor == 1:
            return trace, np.zeros(trace.request_count, dtype=np.int64), np.arange(trace.request_count)
        unit = self._unit
        copies = self._dealt(factor)
        rows = np.repeat(np.arange(trace.request_count), copies[unit])
        if not len(rows):
            raise BadInput.at("growth", f"of {factor:g} leaves no request", "use a larger factor or a longer trace")
        starts = np.concatenate(([0], np.cumsum(copies[unit])[:-1]))
        copy = np.arange(len(rows)) - starts[rows]
        shift = stream(0, "growth jitter").uniform(-JITTER_S, JITTER_S, size=(int(copies.max()), len(copies)))
        shift[0] = 0.0
        arrival = np.clip(trace.arrival_s[rows] + shift[copy, unit[rows]], 0.0, trace.arrival_s[-1])
        tree, node = self._own_branches(rows, copy)
        session = None
        if trace.session is not None:
            sessions = int(trace.session.max(initial=0)) + 1
            session = np.where(trace.session[rows] >= 0, trace.session[rows] + copy * sessions, -1)
        when = np.argsort(arrival, kind="stable")
        grown = replace(
            rows_of(trace, rows[when]),
            arrival_s=arrival[when],
            prefix_node=None if node is None else node[when],
            prefixes=tree,
            session=None if session is None else renumbered(session[when]),
            observed=None if trace.observed is None else select(trace.observed, rows[when]),
        )
        return grown, copy[when], rows[when]

    @cached_property
    def _unit(self) -> Longs:
        return units_of(self._trace)

    @cached_property
    def _by_size(self) -> Longs:
        """Units by their size, those of one size by their first request."""
        count, unit = int(self._unit.max()) + 1, self._unit
        first = np.full(count, self._trace.request_count, dtype=np.int64)
        np.minimum.at(first, unit, np.arange(self._trace.request_count))
        return np.lexsort((first, np.bincount(unit, minlength=count)))

    def _dealt(self, factor: float) -> Longs:
        """Copies of each unit: of any neighbours in size and time, the same share is copied.

        Dealing by size first keeps long sessions neither rarer nor more frequent than short ones.
        """
        order = self._by_size
        copies = np.empty(len(order), dtype=np.int64)
        copies[order] = np.diff(np.floor(np.arange(len(order) + 1) * factor + 0.5))
        return copies

    @cached_property
    def _private(self) -> Bools:
        """Nodes below a root that only one unit uses."""
        tree, named = self._trace.prefixes, self._trace.prefix_node
        if tree is None or named is None:
            return np.zeros(0, dtype=np.bool_)
        private: Bools = ~common_nodes(tree, named, self._unit) & (tree.parent >= 0)
        return private

    def _own_branches(self, rows: Longs, copy: Longs) -> tuple[PrefixTree | None, Ints | None]:
        """Give every copy its own image of the nodes that only its unit used."""
        tree, named = self._trace.prefixes, self._trace.prefix_node
        if tree is None or named is None:
            return None, None
        parents, tokens = [tree.parent], [tree.token_count]
        node = named[rows].astype(np.int64)
        image = np.arange(len(tree.parent), dtype=np.int64)
        size = len(tree.parent)
        for number in range(1, int(copy.max(initial=0)) + 1):
            mine = np.flatnonzero((copy == number) & (node >= 0))
            needed = _ancestors(tree, np.unique(named[rows[mine]])) & self._private
            places = np.flatnonzero(needed)
            image[places] = size + np.arange(len(places))
            above = tree.parent[places]
            parents.append(np.where(above >= 0, image[above], -1).astype(np.int32))
            tokens.append(tree.token_count[places])
            node[mine] = image[named[rows[mine]]]
            image[places] = places
            size += len(places)
        grown = PrefixTree(parent=np.concatenate(parents), token_count=np.concatenate(tokens))
        return grown, node.astype(np.int32)


def peak_window(trace: Trace, *, least_count: int = 500) -> tuple[float, float]:
    """The busiest minute by input plus output tokens, widened until it is enough to speak of a p99.

    Whole minutes are added, always the one with more tokens on either side, until ``least_count`` requests are inside
    or the window is the whole trace.

    Args:
        trace: At least one request.
        least_count: Requests that must be inside.

    Returns:
        Start and end of the window, in seconds.

    Raises:
        BadInput: no requests.
    """
    tally = tally_of(trace)
    whole = whole_minutes(tally)
    requests = tally.minute_requests[:whole]
    tokens = (tally.minute_input_tokens + tally.minute_output_tokens)[:whole]
    begin = int(np.argmax(tokens))
    end = begin + 1
    before = np.concatenate(([0], np.cumsum(requests)))
    while before[end] - before[begin] < least_count and (begin > 0 or end < whole):
        left = int(tokens[begin - 1]) if begin > 0 else -1
        right = int(tokens[end]) if end < whole else -1
        begin, end = (begin - 1, end) if left > right else (begin, end + 1)
    if before[end] - before[begin] < least_count and begin == 0:
        return 0.0, max(trace.duration_s, end * MINUTE_S)
    return begin * MINUTE_S, end * MINUTE_S


def cut_inputs(trace: Trace, most_tokens: int | Ints) -> Trace:
    """The same requests with prompts cut to ``most_tokens``, one number for all or each to its own.

    A prompt cut inside its shared prefix shares nothing any more: no hit is assumed for it.
    """
    nodes = trace.prefix_node
    if nodes is not None and trace.prefixes is not None and len(trace.prefixes.parent):
        depth = trace.prefixes.depth_tokens[np.maximum(nodes, 0)]
        nodes = np.where((nodes >= 0) & (trace.input_tokens > most_tokens) & (depth > most_tokens), -1, nodes)
        nodes = nodes.astype(np.int32)
    inputs = np.minimum(trace.input_tokens, most_tokens).astype(np.int32)
    return replace(trace, input_tokens=inputs, prefix_node=nodes)


def cut_requests(trace: Trace, most_tokens: int) -> Trace:
    """The same requests, none longer than ``most_tokens``, prompt and output: prompts are cut as far as that does it.

    Args:
        trace: The requests.
        most_tokens: at least 2, one of the prompt and one of the output.
    """
    outputs = np.minimum(trace.output_tokens, most_tokens - 1).astype(np.int32)
    return cut_inputs(replace(trace, output_tokens=outputs), (most_tokens - outputs).astype(np.int32))


def select(observed: Observed, rows: Longs) -> Observed:
    """What a log says about the chosen requests, in the given order."""
    return Observed(
        model=_take(observed.model, rows),
        models=observed.models,
        label=_take(observed.label, rows),
        labels=observed.labels,
        cached_input_tokens=_take(observed.cached_input_tokens, rows),
        reasoning_tokens=_take(observed.reasoning_tokens, rows),
        ttft_s=None if observed.ttft_s is None else observed.ttft_s[rows],
        e2e_s=None if observed.e2e_s is None else observed.e2e_s[rows],
        streamed=_take(observed.streamed, rows),
        finish=_take(observed.finish, rows),
        finishes=observed.finishes,
        status=_take(observed.status, rows),
        statuses=observed.statuses,
    )


def _take(column: Ints | None, rows: Longs) -> Ints | None:
    return None if column is None else column[rows]


def _ancestors(tree: PrefixTree, nodes: npt.NDArray[np.int32]) -> npt.NDArray[np.bool_]:
    marked = np.zeros(len(tree.parent), dtype=bool)
    while len(nodes):
        nodes = nodes[(nodes >= 0)]
        nodes = np.unique(nodes[~marked[nodes]])
        marked[nodes] = True
        nodes = tree.parent[nodes]
    return marked
