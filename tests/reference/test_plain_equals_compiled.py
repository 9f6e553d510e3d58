"""The compiled kernel equals the plain engine: every column, every gap, every picosecond."""

from dataclasses import replace

import numpy as np
import pytest

from reference.comparing import assert_equal
from reference.fleets import (
    engine,
    fleet,
    physics,
    random_copies,
    random_fleet,
    random_overcommitted,
    random_trace,
    trace,
    with_speculation,
    with_windows,
)
from tokenfleet.domain.trace import PrefixTree
from tokenfleet.simulator import replay


def check(seed: int, *, shared: bool, name: str = "test", **settings: bool) -> None:
    draw = np.random.default_rng(seed)
    drawn = random_fleet(draw, name=name, **settings)
    assert_equal(random_trace(draw, shared=shared), drawn)


@pytest.mark.parametrize("seed", range(4))
def test_without_prefix_cache(seed: int) -> None:
    for step in range(12):
        check(1000 * seed + step, shared=bool(step % 2), prefix_caching=False)


@pytest.mark.parametrize("seed", range(4))
def test_with_prefix_cache_and_unshared_prompts(seed: int) -> None:
    for step in range(12):
        check(1000 * seed + 100 + step, shared=False, prefix_caching=True)


@pytest.mark.parametrize("seed", range(2))
def test_many_replicas(seed: int) -> None:
    """Full tournaments of their next events, and such as lack some."""
    for step in range(10):
        draw = np.random.default_rng(1000 * seed + 150 + step)
        drawn = random_fleet(draw)
        groups = tuple(replace(group, replica_count=16 + step) for group in drawn.groups)
        assert_equal(random_trace(draw), replace(drawn, groups=groups))


@pytest.mark.parametrize("seed", range(4))
def test_with_shared_prefixes(seed: int) -> None:
    for step in range(15):
        check(1000 * seed + 200 + step, shared=True)


@pytest.mark.parametrize("seed", range(4))
def test_with_blocks_written_twice(seed: int) -> None:
    for step in range(15):
        assert_equal(*random_copies(np.random.default_rng(1000 * seed + 300 + step)))


@pytest.mark.parametrize("name", ["sglang-0.5", "trtllm-1.2"])
@pytest.mark.parametrize("seed", range(2))
def test_other_rule_sets(name: str, seed: int) -> None:
    for step in range(10):
        check(1000 * seed + 400 + step, shared=bool(step % 2), name=name)
        assert_equal(*random_copies(np.random.default_rng(1000 * seed + 500 + step), name=name))


def check_delivered(draw: np.random.Generator, step: int, name: str) -> None:
    drawn = random_fleet(draw, name=name)
    assert_equal(random_trace(draw, shared=bool(step % 2), delivered=True), drawn)
    rows, drawn = random_overcommitted(draw)
    assert_equal(replace(rows, kv_delivered=draw.random(rows.request_count) < 0.7), drawn)


@pytest.mark.parametrize("name", ["test", "sglang-0.5", "trtllm-1.2"])
@pytest.mark.parametrize("seed", range(2))
def test_with_kv_that_comes_along(name: str, seed: int) -> None:
    for step in range(4):
        check_delivered(np.random.default_rng(1000 * seed + 700 + step), step, name)


@pytest.mark.parametrize("name", ["test", "sglang-0.5"])
@pytest.mark.parametrize("seed", range(2))
def test_gaps_of_classes(name: str, seed: int) -> None:
    told_apart = 0
    for step in range(12):
        draw = np.random.default_rng(1000 * seed + 800 + step)
        drawn = random_fleet(draw, name=name)
        rows = random_trace(draw, delivered=bool(step % 2))
        bits = draw.integers(0, 4, rows.request_count).astype(np.int32)
        run = assert_equal(replace(rows, class_bits=bits, classes=("chat", "batch")), drawn)
        told_apart += {"chat", "batch"} <= set(run.class_gaps)
    assert told_apart > 5


def test_retractions() -> None:
    retracted = 0
    for step in range(30):
        rows, drawn = random_overcommitted(np.random.default_rng(600 + step))
        assert_equal(rows, drawn)
        retracted += replay(rows, drawn).preemption_count.sum()
    assert retracted > 5


@pytest.mark.parametrize("name", ["vllm-0.11", "vllm-0.16"])
def test_versions_that_reuse_blocks_without_a_name_in_turn(name: str) -> None:
    for step in range(15):
        check(900 + step, shared=True, name=name, prefix_caching=True)
        assert_equal(*random_copies(np.random.default_rng(950 + step), name=name))


@pytest.mark.parametrize("blocks", [120, 1000])
def test_with_many_shared_prefixes(blocks: int) -> None:
    """More than the first table of the cache holds; in little memory they come and go."""
    draw = np.random.default_rng(800 + blocks)
    nodes, count = 150, 400
    parent = np.array([int(draw.integers(-1, node)) if node else -1 for node in range(nodes)], dtype=np.int32)
    tree = PrefixTree(parent=parent, token_count=draw.integers(3, 14, nodes).astype(np.int32))
    chosen = draw.integers(0, nodes, count).astype(np.int32)
    lengths = np.column_stack([tree.depth_tokens[chosen] + draw.integers(1, 9, count), draw.integers(0, 9, count)])
    rows = trace(np.column_stack([np.arange(count) * 9, lengths]), prefix_node=chosen, prefixes=tree)
    record = assert_equal(rows, fleet(physics(settings=engine(prefix_caching=True), blocks=blocks), count=2))
    assert record.cached_tokens.mean() > 5


def check_drafts(draw: np.random.Generator, step: int, name: str) -> None:
    drawn = with_speculation(draw, random_fleet(draw, name=name))
    assert_equal(random_trace(draw, shared=bool(step % 2), delivered=step % 4 > 2), drawn)
    rows, drawn = random_copies(draw, name=name)
    assert_equal(rows, with_speculation(draw, drawn))
    rows, drawn = random_overcommitted(draw)
    assert_equal(rows, with_speculation(draw, drawn))


def check_windows(draw: np.random.Generator, step: int, name: str) -> None:
    drawn = with_windows(draw, random_fleet(draw, name=name))
    if step % 4 == 0:
        drawn = with_speculation(draw, drawn)
    assert_equal(random_trace(draw, shared=bool(step % 3), delivered=step % 5 > 3), drawn)
    rows, drawn = random_copies(draw, name=name)
    assert_equal(rows, with_windows(draw, drawn))


@pytest.mark.parametrize("name", ["test", "sglang-0.5", "trtllm-1.2"])
@pytest.mark.parametrize("seed", range(2))
def test_with_drafted_tokens(name: str, seed: int) -> None:
    for step in range(6):
        check_drafts(np.random.default_rng(1000 * seed + 800 + step), step, name)


@pytest.mark.parametrize("name", ["test", "sglang-0.5", "trtllm-1.2"])
@pytest.mark.parametrize("seed", range(2))
def test_layers_with_windows(name: str, seed: int) -> None:
    for step in range(10):
        check_windows(np.random.default_rng(1000 * seed + 900 + step), step, name)


@pytest.mark.long
@pytest.mark.parametrize("name", ["test", "sglang-0.5", "trtllm-1.2"])
@pytest.mark.parametrize("seed", range(10, 20))
def test_thousands_of_workloads_with_windows(name: str, seed: int) -> None:
    for step in range(30):
        draw = np.random.default_rng(1000 * seed + step)
        check_windows(draw, step, name)
        rows, drawn = random_overcommitted(draw)
        assert_equal(rows, with_windows(draw, drawn))


@pytest.mark.long
@pytest.mark.parametrize("name", ["test", "sglang-0.5", "trtllm-1.2"])
@pytest.mark.parametrize("seed", range(10, 20))
def test_thousands_of_workloads_with_drafted_tokens(name: str, seed: int) -> None:
    for step in range(30):
        check_drafts(np.random.default_rng(1000 * seed + step), step, name)


@pytest.mark.long
@pytest.mark.parametrize("name", ["test", "sglang-0.5", "trtllm-1.2"])
@pytest.mark.parametrize("seed", range(10, 15))
def test_hundreds_of_workloads_with_kv_that_comes_along(name: str, seed: int) -> None:
    for step in range(30):
        check_delivered(np.random.default_rng(1000 * seed + step), step, name)


@pytest.mark.long
@pytest.mark.parametrize("name", ["sglang-0.5", "trtllm-1.2"])
@pytest.mark.parametrize("seed", range(10, 20))
def test_thousands_of_workloads_of_other_rule_sets(name: str, seed: int) -> None:
    for step in range(50):
        check(1000 * seed + step, shared=bool(step % 4), name=name)
        assert_equal(*random_copies(np.random.default_rng(1000 * seed + step), name=name))
        assert_equal(*random_overcommitted(np.random.default_rng(1000 * seed + step)))


@pytest.mark.long
@pytest.mark.parametrize("seed", range(10, 40))
def test_thousands_of_workloads(seed: int) -> None:
    for step in range(40):
        check(1000 * seed + step, shared=bool(step % 4))
        assert_equal(*random_copies(np.random.default_rng(1000 * seed + step)))
