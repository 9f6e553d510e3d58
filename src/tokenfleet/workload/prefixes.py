"""Shared token sequences: from block hashes to a tree, and what a cache could serve from it."""

from collections.abc import Iterator

import numpy as np
import numpy.typing as npt

from tokenfleet.domain.trace import Ints, PrefixTree, Trace

Longs = npt.NDArray[np.int64]

_FEWEST_RANGES = 3
"""Sessions of so many different lengths that each hold an unbroken range cannot all be beginnings of one text."""

_LARGEST_UNIT = 0.01
"""A unit that carries more than this share of the requests is dealt with request by request."""

BLOCK_SIZES = (16, 32, 64, 128, 256, 512, 1024)


def block_size_of(input_tokens: Longs, block_counts: Longs) -> tuple[int, bool] | None:
    """Tokens per hashed block, found from lengths, because files do not say it.

    Args:
        input_tokens: Prompt tokens.
        block_counts: Hashes listed for each prompt.

    Returns:
        Block size, and whether a last partial block has a hash of its own; ``None`` when no usual size explains at
        least 99 of 100 rows.
    """
    known = block_counts > 0
    if not known.any():
        return None
    tokens, blocks = input_tokens[known], block_counts[known]
    for size in BLOCK_SIZES:
        if np.mean(-(-tokens // size) == blocks) >= 0.99:
            return size, True
        if np.mean(tokens // size == blocks) >= 0.99:
            return size, False
    return None


def told_apart(flat: Longs, block_counts: Longs, session: Ints | None) -> Longs | None:
    """Hashes made distinct per session, where every session numbers its blocks anew; ``None`` where they do not.

    Some tools number the blocks of each conversation from the same start, so that equal numbers of two sessions mean
    nothing. It shows: each session then holds an unbroken range from one common start, and the ranges differ in length.
    Numbers that mean text instead have shared blocks at the start and gaps after them.

    Args:
        flat: All hashes, request after request.
        block_counts: Hashes of each request.
        session: Session of each request, -1 for none.
    """
    if session is None or not len(flat):
        return None
    owner = np.repeat(session.astype(np.int64), block_counts)
    low, reach = int(flat.min()), int(flat.max()) - int(flat.min()) + 1
    # Numbers spread wider than there are blocks are hashes of text.
    if int(owner.min()) < 0 or reach > len(flat):
        return None
    apart = owner * reach + (flat - low)
    distinct = np.unique(apart)
    _, first, sizes = np.unique(distinct // reach, return_index=True, return_counts=True)
    begins, ends = distinct[first] % reach, distinct[first + sizes - 1] % reach
    unbroken = np.all(begins == begins[0]) and np.all(ends - begins + 1 == sizes)
    return apart if unbroken and len(np.unique(sizes)) >= _FEWEST_RANGES else None


def tree_of_hashes(
    flat: Longs, block_counts: Longs, input_tokens: Longs, block_size: int
) -> tuple[PrefixTree, Ints] | None:
    """Turn chains of block hashes into a tree of shared runs.

    A hash stands for its block and all blocks before it, so a hash has one predecessor. Where that does not hold the
    hashes are no chains and ``None`` comes back: nothing is known about sharing.

    Args:
        flat: All hashes, request after request.
        block_counts: Hashes of each request.
        input_tokens: Prompt tokens of each request; cut the last block short.
        block_size: Tokens of a whole block.

    Returns:
        The tree of blocks that at least two requests carry, and the deepest node of each request (-1 for none).
    """
    node = np.full(len(block_counts), -1, dtype=np.int32)
    empty = PrefixTree(parent=np.zeros(0, dtype=np.int32), token_count=np.zeros(0, dtype=np.int32))
    if not len(flat):
        return empty, node
    _, ids = np.unique(flat, return_inverse=True)
    ends = np.cumsum(block_counts)
    starts = ends - block_counts
    row = np.repeat(np.arange(len(block_counts)), block_counts)
    position = np.arange(len(flat)) - starts[row]
    count = int(ids.max()) + 1
    before = np.where(position == 0, -1, np.concatenate(([-1], ids[:-1])))
    parent = np.full(count, -2, dtype=np.int64)
    parent[ids] = before
    if not np.array_equal(parent[ids], before):
        return None
    tokens = np.minimum(block_size, input_tokens[row] - position * block_size)
    block_tokens = np.full(count, block_size, dtype=np.int64)
    np.minimum.at(block_tokens, ids, tokens)
    uses = np.bincount(ids, minlength=count)
    depth = np.zeros(count, dtype=np.int64)
    depth[ids] = position
    block_node, tree = _runs(parent, uses, depth, block_tokens)
    shared = uses[ids] > 1
    last = np.full(len(block_counts), -1, dtype=np.int64)
    np.maximum.at(last, row[shared], np.flatnonzero(shared))
    named = last >= 0
    node[named] = block_node[ids[last[named]]]
    return tree, node


def _runs(parent: Longs, uses: Longs, depth: Longs, tokens: Longs) -> tuple[Ints, PrefixTree]:
    """Join blocks that all their users carry together into one node."""
    shared = uses > 1
    joined = shared & (parent >= 0) & (uses == np.where(parent >= 0, uses[parent], 0))
    order = np.argsort(depth, kind="stable")
    order = order[shared[order]]
    heads = order[~joined[order]]
    node = np.full(len(parent), -1, dtype=np.int64)
    node[heads] = np.arange(len(heads))
    # Blocks come before their successors in this order, so one sweep per depth hands the node down.
    cuts = np.flatnonzero(np.diff(depth[order])) + 1
    for level in np.split(order, cuts):
        follow = level[joined[level]]
        node[follow] = node[parent[follow]]
    token_count = np.zeros(len(heads), dtype=np.int64)
    np.add.at(token_count, node[order], tokens[order])
    above = np.where(parent[heads] >= 0, node[parent[heads]], -1)
    tree = PrefixTree(parent=above.astype(np.int32), token_count=token_count.astype(np.int32))
    return node.astype(np.int32), tree


def levels(tree: PrefixTree) -> Longs:
    """How many nodes lie above each."""
    level = (tree.parent >= 0).astype(np.int64)
    above = tree.parent.astype(np.int64)
    while (climbing := np.flatnonzero(above >= 0)).size:
        reached = above[climbing]
        level[climbing] += level[reached]
        above[climbing] = above[reached]
    return level


def upwards(tree: PrefixTree) -> Iterator[Longs]:
    """Nodes level by level from the deepest, roots left out: what is handed to parents arrives complete."""
    level = levels(tree)
    order = np.argsort(level, kind="stable")
    edges = np.searchsorted(level[order], np.arange(1, int(level.max(initial=0)) + 2))
    for place in range(len(edges) - 2, -1, -1):
        yield order[edges[place] : edges[place + 1]]


def first_use(tree: PrefixTree, node: Ints) -> Longs:
    """Index of the first request that carries each node, itself or one below it; one past the end when none does."""
    first = np.full(len(tree.parent), len(node), dtype=np.int64)
    named = np.flatnonzero(node >= 0)
    np.minimum.at(first, node[named], named)
    for nodes in upwards(tree):
        np.minimum.at(first, tree.parent[nodes], first[nodes])
    return first


def shared_tokens(tree: PrefixTree, node: Ints, input_tokens: Ints) -> Longs:
    """Input tokens of each request that an endless cache would hold when it arrives.

    Every request before it counts as finished, so this is an upper bound on what a real cache serves.
    """
    depth = np.concatenate((tree.depth_tokens, [0]))
    parent = np.concatenate((tree.parent, [-1]))
    first = np.concatenate((first_use(tree, node), [-1]))
    here = node.astype(np.int64)
    index = np.arange(len(node))
    climbing = np.flatnonzero(first[here] >= index)
    while len(climbing):
        here[climbing] = parent[here[climbing]]
        climbing = climbing[first[here[climbing]] >= climbing]
    return np.minimum(depth[here], input_tokens)


def shared_input_tokens(trace: Trace) -> Longs:
    """Input tokens of each request that earlier requests have brought, as far as the source tells.

    A request names the deepest node of its prompt *and* answer, which nobody had before it came: what a cache can
    serve is the part of that path that an earlier request carried. 0 where the trace has no prefixes.
    """
    if trace.prefixes is None or trace.prefix_node is None or not len(trace.prefixes.parent):
        return np.zeros(trace.request_count, dtype=np.int64)
    return shared_tokens(trace.prefixes, trace.prefix_node, trace.input_tokens)


def units_of(trace: Trace) -> Longs:
    """What stays together: a session, else a branch below a root of the prefix tree, else a request."""
    index = np.arange(trace.request_count, dtype=np.int64)
    if trace.session is not None:
        label = np.where(trace.session >= 0, trace.session.astype(np.int64), -1)
    elif trace.prefixes is not None and trace.prefix_node is not None and len(trace.prefixes.parent):
        branch = _branches(trace.prefixes)
        label = np.where(trace.prefix_node >= 0, branch[trace.prefix_node], -1)
    else:
        return index
    sizes = np.bincount(label[label >= 0], minlength=int(label.max(initial=-1)) + 1)
    large = np.zeros(len(sizes) + 1, dtype=bool)
    large[: len(sizes)] = sizes > max(_LARGEST_UNIT * trace.request_count, 50)
    alone = (label < 0) | large[label]
    return renumbered(np.where(alone, index + len(sizes), label)).astype(np.int64)


def _branches(tree: PrefixTree) -> Longs:
    """For each node the one below its root on its own path; -1 for roots, which many share."""
    parent = tree.parent.astype(np.int64)
    top = (parent >= 0) & (parent[parent] < 0)
    branch = np.where(top | (parent < 0), np.arange(len(parent)), parent)
    while not np.array_equal(branch, branch[branch]):
        branch = branch[branch]
    return np.where(parent < 0, -1, branch)


def common_nodes(tree: PrefixTree, named: Ints, unit: Longs) -> npt.NDArray[np.bool_]:
    """Nodes that at least two units carry."""
    size = len(tree.parent)
    low = np.full(size, np.iinfo(np.int64).max, dtype=np.int64)
    high = np.full(size, -1, dtype=np.int64)
    known = named >= 0
    np.minimum.at(low, named[known], unit[known])
    np.maximum.at(high, named[known], unit[known])
    for nodes in upwards(tree):
        np.minimum.at(low, tree.parent[nodes], low[nodes])
        np.maximum.at(high, tree.parent[nodes], high[nodes])
    return np.asarray(low < high, dtype=np.bool_)


def renumbered(labels: Longs) -> Ints:
    """Labels as 0, 1, 2...; -1 stays."""
    _, numbers = np.unique(labels, return_inverse=True)
    lowest = int(labels.min(initial=0))
    return (numbers - (1 if lowest < 0 else 0)).astype(np.int32)
