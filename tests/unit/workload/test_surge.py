from dataclasses import replace

import numpy as np
import pytest

from tokenfleet import workload
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import Observed, PrefixTree, Trace


def trace(count=1200, seconds=600.0):
    random = np.random.default_rng(3)
    return Trace(
        arrival_s=np.sort(random.uniform(0.0, seconds, count)),
        input_tokens=random.integers(100, 400, count).astype(np.int32),
        output_tokens=random.integers(1, 90, count).astype(np.int32),
        prefix_node=random.integers(-1, 3, count).astype(np.int32),
        prefixes=PrefixTree(
            parent=np.array([-1, -1, 0], dtype=np.int32), token_count=np.array([64, 32, 16], dtype=np.int32)
        ),
        session=np.arange(count, dtype=np.int32),
        tenant=random.integers(0, 2, count).astype(np.int32),
        tenants=("one", "two"),
    )


def inside(made, start, end):
    return (made.arrival_s >= start) & (made.arrival_s < end)


@pytest.mark.parametrize("shape", ["flat", "ramp", "hill", "front"])
def test_the_usual_requests_stay_where_they_are(shape):
    usual = trace()
    made = workload.surge(usual, start_s=200.0, length_s=100.0, factor=1.2, shape=shape)
    assert np.isin(usual.arrival_s, made.arrival_s).all()


@pytest.mark.parametrize("shape", ["flat", "ramp", "hill", "front"])
def test_only_the_stretch_has_more(shape):
    usual = trace()
    made = workload.surge(usual, start_s=200.0, length_s=100.0, factor=3.0, shape=shape)
    assert inside(made, 200.0, 300.0).sum() == pytest.approx(3 * inside(usual, 200.0, 300.0).sum(), abs=2)
    for start, end in ((0.0, 200.0), (300.0, 601.0)):
        for column in ("arrival_s", "input_tokens", "output_tokens", "prefix_node", "session"):
            before, after = getattr(usual, column), getattr(made, column)
            assert np.array_equal(before[inside(usual, start, end)], after[inside(made, start, end)])
    assert np.all(np.diff(made.arrival_s) >= 0)
    assert len(np.unique(made.session)) == made.request_count


def test_shapes_put_the_requests_where_they_say():
    where = {}
    usual = trace()
    for shape in ("flat", "ramp", "hill", "front"):
        made = workload.surge(usual, start_s=0.0, length_s=500.0, factor=4.0, shape=shape)
        on_top = inside(made, 0.0, 500.0) & ~np.isin(made.arrival_s, usual.arrival_s)
        places = made.arrival_s[on_top] / 500.0
        where[shape] = places.mean(), places.std(), places.max()
    assert where["flat"][0] == pytest.approx(0.5, abs=0.02)
    assert where["ramp"][0] == pytest.approx(2 / 3, abs=0.02)
    assert where["hill"][0] == pytest.approx(0.5, abs=0.02)
    assert where["hill"][1] < 0.8 * where["flat"][1]
    assert where["front"][2] < 0.1


def test_everybody_keeps_the_label_of_their_task():
    usual = trace()
    labelled = replace(usual, observed=Observed(label=usual.tenant, labels=("chat", "search")))
    made = workload.surge(labelled, start_s=200.0, length_s=100.0, factor=3.0)
    assert made.observed == Observed(label=made.observed.label, labels=("chat", "search"))
    assert np.array_equal(made.observed.label, made.tenant)
    assert workload.surge(usual, start_s=200.0, length_s=100.0, factor=3.0).observed is None


def test_copies_share_the_system_prompts_of_the_usual():
    usual = trace()
    made = workload.surge(usual, start_s=200.0, length_s=100.0, factor=5.0)
    assert np.array_equal(made.prefixes.parent[:3], usual.prefixes.parent)
    roots = {node for node in np.unique(made.prefix_node) if node >= 0 and made.prefixes.parent[node] < 0}
    assert roots == {0, 1}


@pytest.mark.parametrize(
    ("start", "length", "factor", "what"),
    [(700.0, 60.0, 2.0, "holds no request"), (0.0, 60.0, 1.0, "times the usual"), (0.0, 0.0, 2.0, "holds no request")],
)
def test_what_is_no_surge_is_bad_input(start, length, factor, what):
    with pytest.raises(BadInput, match=what):
        workload.surge(trace(), start_s=start, length_s=length, factor=factor)


def test_each_request_is_known_by_the_one_that_it_behaves_as():
    usual = trace()
    made, rows = workload.surge_with_rows(usual, start_s=200.0, length_s=100.0, factor=2.5)
    again, source = workload.repeated_with_rows(usual, 3)
    for other, of in ((made, rows), (again, source)):
        for column in ("input_tokens", "output_tokens", "tenant"):
            assert np.array_equal(getattr(other, column), getattr(usual, column)[of])
    assert set(rows) == set(range(usual.request_count))
    assert np.array_equal(np.bincount(source), np.full(usual.request_count, 3))
    inside_s = inside(usual, 200.0, 300.0)
    assert set(rows[np.flatnonzero(~np.isin(made.arrival_s, usual.arrival_s))]) <= set(np.flatnonzero(inside_s))


def test_models_are_kept_like_labels():
    usual = trace()
    model = np.arange(usual.request_count, dtype=np.int32) % 3
    named = replace(usual, observed=Observed(model=model, models=("a", "b", "c")))
    made, rows = workload.surge_with_rows(named, start_s=200.0, length_s=100.0, factor=2.0)
    assert made.observed.models == ("a", "b", "c")
    assert np.array_equal(made.observed.model, model[rows])
    assert made.observed.label is None
