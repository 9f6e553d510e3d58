import itertools

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from tokenfleet.domain.trace import PrefixTree
from tokenfleet.workload import shared_input_tokens, synthesize
from tokenfleet.workload.prefixes import block_size_of, levels, shared_tokens, tree_of_hashes, upwards

BLOCK = 16


@st.composite
def texts(draw):
    """Prompts as sequences of words; some start like earlier ones."""
    prompts = []
    for number in range(draw(st.integers(1, 12))):
        base = draw(st.sampled_from([*prompts, []])) if prompts else []
        kept = base[: draw(st.integers(0, len(base)))]
        own = [f"{number}-{index}" for index in range(draw(st.integers(1, 60)))]
        prompts.append(kept + own)
    return prompts


def hashed(prompts):
    ids, lists = {}, []
    for prompt in prompts:
        blocks = range(-(-len(prompt) // BLOCK))
        lists.append([ids.setdefault(tuple(prompt[: (block + 1) * BLOCK]), len(ids)) for block in blocks])
    flat = np.array([hash_ for row in lists for hash_ in row], dtype=np.int64)
    return flat, np.array([len(row) for row in lists], dtype=np.int64)


def common_blocks(one, two):
    """Tokens of the blocks that two prompts share, a last partial one only when both end in it."""
    count = 0
    for block in range(-(-min(len(one), len(two)) // BLOCK)):
        if one[: (block + 1) * BLOCK] != two[: (block + 1) * BLOCK]:
            break
        count = min((block + 1) * BLOCK, len(one))
    return count


@settings(max_examples=150, deadline=None)
@given(prompts=texts())
def test_an_endless_cache_serves_the_longest_earlier_match(prompts):
    flat, counts = hashed(prompts)
    tokens = np.array([len(prompt) for prompt in prompts], dtype=np.int64)
    tree, node = tree_of_hashes(flat, counts, tokens, BLOCK)
    served = shared_tokens(tree, node, tokens.astype(np.int32))
    for index, prompt in enumerate(prompts):
        expected = max((common_blocks(prompt, earlier) for earlier in prompts[:index]), default=0)
        assert served[index] == expected
    assert np.all(tree.parent < np.arange(len(tree.parent)))


def test_hashes_that_are_no_chains_are_refused():
    flat = np.array([1, 2, 3, 2], dtype=np.int64)
    assert tree_of_hashes(flat, np.array([2, 2]), np.array([32, 32]), BLOCK) is None


def test_block_size_is_found_from_lengths():
    tokens = np.array([100, 513, 1024, 5000], dtype=np.int64)
    assert block_size_of(tokens, -(-tokens // 512)) == (512, True)
    assert block_size_of(tokens, tokens // 64) == (64, False)
    assert block_size_of(tokens, np.zeros(4, dtype=np.int64)) is None
    assert block_size_of(tokens, tokens // 7) is None


@settings(max_examples=100, deadline=None)
@given(data=st.data(), size=st.integers(0, 40))
def test_depths_and_levels_are_those_of_a_walk(data, size):
    parent = np.array([data.draw(st.integers(-1, node - 1)) for node in range(size)], dtype=np.int32)
    tokens = np.array([data.draw(st.integers(1, 9)) for _ in range(size)], dtype=np.int32)
    tree = PrefixTree(parent=parent, token_count=tokens)
    depth, level = [], []
    for node in range(size):
        above = parent[node]
        depth.append(tokens[node] + (depth[above] if above >= 0 else 0))
        level.append(level[above] + 1 if above >= 0 else 0)
    assert tree.depth_tokens.tolist() == depth
    assert levels(tree).tolist() == level
    seen = [node for nodes in upwards(tree) for node in nodes.tolist()]
    assert sorted(seen) == [node for node in range(size) if parent[node] >= 0]
    assert all(level[one] >= level[two] for one, two in itertools.pairwise(seen))


def test_the_first_turn_shares_its_system_prompt_and_the_next_all_that_was_said():
    trace = synthesize("agents", peak_rate_per_s=2, duration_s=600, seed=1)
    shared = shared_input_tokens(trace)
    order = np.lexsort((trace.arrival_s, trace.session))
    session = trace.session[order]
    for one, two, same in zip(order[:-1], order[1:], np.diff(session) == 0, strict=True):
        if same:
            assert shared[two] == trace.input_tokens[one] + trace.output_tokens[one]
    assert shared[0] == 0
    assert shared[1:].min() >= 18_400
