"""Shared prompts of a trace drawn from a profile: common beginnings, and what a session repeats of itself."""

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.records import dataclass
from tokenfleet.domain.trace import Ints, PrefixTree, PromptShape
from tokenfleet.workload.prefixes import levels, shared_tokens
from tokenfleet.workload.streams import stream

Longs = npt.NDArray[np.int64]

_TRIES, _CLOSE = 6, 0.002


@dataclass(frozen=True, slots=True)
class _Turns:
    """Requests by unit and time: places in the trace, and what each needs to know of its neighbours."""

    order: Longs
    unit: Longs
    given: Longs
    total: Longs
    follows: npt.NDArray[np.bool_]
    """Whether the request before is of the same session."""
    followed: npt.NDArray[np.bool_]


def prompts_like(
    shape: PromptShape, wanted_fraction: float, session: Longs, input_tokens: Ints, output_tokens: Ints, seed: int
) -> tuple[PrefixTree, Ints]:
    """The prefix tree of drawn requests.

    What sessions repeat of themselves is scaled a little, until an endless cache would serve the measured share.

    Args:
        shape: What prompts share.
        wanted_fraction: Share of input tokens that an endless cache would serve.
        session: Session of each request in order of time, -1 for none.
        input_tokens: Per request.
        output_tokens: Per request.
        seed: The trace's seed.
    """
    turns = _turns(session, input_tokens, output_tokens)
    text, tokens = _texts(shape, turns, seed)
    percent = _percents(shape, len(turns.order), seed)
    low, high = 0.0, 2.0
    factor, best = 1.0, None
    for _ in range(_TRIES):
        tree, node = _tree(turns, text, tokens, np.minimum(percent * factor, 1.0))
        reached = float(shared_tokens(tree, node, input_tokens).sum() / input_tokens.sum(dtype=np.int64))
        if best is None or abs(reached - wanted_fraction) < best[0]:
            best = (abs(reached - wanted_fraction), tree, node)
        if best[0] <= _CLOSE:
            break
        low, high = (factor, high) if reached < wanted_fraction else (low, factor)
        factor = (low + high) / 2
    assert best is not None
    return best[1], best[2]


def _turns(session: Longs, input_tokens: Ints, output_tokens: Ints) -> _Turns:
    unit = np.where(session >= 0, session, int(session.max(initial=-1)) + 1 + np.arange(len(session)))
    order = np.argsort(unit, kind="stable")
    same = unit[order][1:] == unit[order][:-1]
    given = input_tokens[order].astype(np.int64)
    return _Turns(
        order=order,
        unit=np.cumsum(np.concatenate(([True], ~same))) - 1,
        given=given,
        total=given + output_tokens[order],
        follows=np.concatenate(([False], same)),
        followed=np.concatenate((same, [False])),
    )


def _texts(shape: PromptShape, turns: _Turns, seed: int) -> tuple[Longs, Longs]:
    """Which common text each unit begins with, -1 for none; and the length of each text.

    Texts go to random units whose first prompt is longer than they are, the longest texts first.
    """
    opening = turns.given[~turns.follows]
    growth = len(opening) / max(shape.unit_count, 1)
    units = np.rint(shape.shared_units * growth).astype(np.int64)
    texts = np.where(shape.shared_texts == 1, 1, np.maximum(np.rint(shape.shared_texts * growth), 1)).astype(np.int64)
    first = np.cumsum(texts) - texts
    tokens = np.repeat(shape.shared_tokens, texts)
    kind = np.repeat(np.arange(len(units)), units)
    kind = kind[np.argsort(-shape.shared_tokens[kind], kind="stable")]
    random = stream(seed, "common texts")
    drawn = first[kind] + (random.random(len(kind)) * texts[kind]).astype(np.int64)
    ranked = np.argsort(-opening, kind="stable").tolist()
    room = np.searchsorted(np.sort(-opening), -shape.shared_tokens[kind], side="left").tolist()
    text = np.full(len(opening), -1, dtype=np.int64)
    share = random.random(len(kind)).tolist()
    for place, (fits, name) in enumerate(zip(room, drawn.tolist(), strict=True)):
        if place >= len(ranked) or fits <= place:
            continue
        other = place + int(share[place] * (fits - place))
        ranked[place], ranked[other] = ranked[other], ranked[place]
        text[ranked[place]] = name
    return text, tokens


def _percents(shape: PromptShape, size: int, seed: int) -> npt.NDArray[np.float64]:
    counts = shape.repeated_percents
    if not len(counts.values):
        return np.zeros(size)
    upto = np.cumsum(counts.counts)
    place = stream(seed, "repeated").random(size) * int(upto[-1])
    return counts.values[np.searchsorted(upto, place, side="right")] / 100


def _tree(turns: _Turns, text: Longs, tokens: Longs, percent: npt.NDArray[np.float64]) -> tuple[PrefixTree, Ints]:
    """Texts are roots; what the next request of a session repeats is a node on the path of the one before."""
    base = text[turns.unit]
    base_tokens = np.append(tokens, 0)[base]
    named = np.where(base_tokens <= turns.total, base, -1)
    after = np.append(turns.given[1:], 0)
    repeated = np.where(turns.followed, np.floor(percent * np.minimum(turns.total, after)), 0).astype(np.int64)
    grown = _Grown(tokens)
    places = np.flatnonzero(turns.follows | turns.followed)
    columns = (column[places].tolist() for column in (turns.follows, base, base_tokens, repeated, turns.total))
    paths = np.array([grown.next(*row) for row in zip(*columns, strict=True)], dtype=np.int64)
    named[places] = paths
    tree, moved = grown.tree()
    node = np.empty(len(turns.order), dtype=np.int32)
    node[turns.order] = np.append(moved, -1)[named]
    return tree, node


class _Grown:
    """A prefix tree that sessions are added to, one after the other and request by request."""

    def __init__(self, roots: Longs) -> None:
        """Begin with the common texts."""
        self._parent = [-1] * len(roots)
        self._tokens = roots.tolist()
        self._texts = len(roots)
        self._path: list[tuple[int, int]] = []
        """Nodes of the session's last request from the root on, each with the tokens down to it."""

    def next(self, follows: bool, base: int, base_tokens: int, repeated: int, total: int) -> int:
        """Add a request; ``repeated`` of its tokens come again in the next. Gives its deepest node, -1 for none."""
        if not follows:
            self._path = [(base, base_tokens)] if base >= 0 and base_tokens <= total else []
        mine = self._path[-1][0] if self._path else -1
        deepest = self._path[-1][1] if self._path else 0
        if repeated > deepest:
            mine = self._added(mine, repeated - deepest)
            self._path.append((mine, repeated))
        elif repeated < deepest:
            self._cut(repeated)
        return mine

    def _added(self, parent: int, tokens: int) -> int:
        self._parent.append(parent)
        self._tokens.append(tokens)
        return len(self._parent) - 1

    def _cut(self, depth: int) -> None:
        """Shorten the path; a node that reaches beyond is split, unless it is a text that others begin with too."""
        below = None
        while self._path and self._path[-1][1] > depth:
            below = self._path.pop()[0]
        above, reached = self._path[-1] if self._path else (-1, 0)
        if below is None or depth == reached or below < self._texts:
            return
        upper = self._added(above, depth - reached)
        self._parent[below], self._tokens[below] = upper, self._tokens[below] - (depth - reached)
        self._path.append((upper, depth))

    def tree(self) -> tuple[PrefixTree, Longs]:
        """The tree, parents before their children, and where each node went."""
        loose = PrefixTree(
            parent=np.array(self._parent, dtype=np.int32), token_count=np.array(self._tokens, dtype=np.int32)
        )
        order = np.argsort(levels(loose), kind="stable")
        moved = np.empty(len(order), dtype=np.int64)
        moved[order] = np.arange(len(order))
        parent = np.append(moved, -1)[loose.parent[order]]
        return PrefixTree(parent=parent.astype(np.int32), token_count=loose.token_count[order]), moved
