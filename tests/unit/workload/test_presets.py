import itertools

import numpy as np
import pytest

from tokenfleet.domain.errors import BadInput
from tokenfleet.workload import preset, preset_document, preset_names, profile, synthesize

NAMES = ("agents", "batch", "chat", "multitenant", "rag", "summarize")


@pytest.fixture(scope="module")
def drawn():
    return {name: synthesize(name, peak_rate_per_s=10, duration_s=3600, seed=5) for name in NAMES}


def test_there_are_six():
    assert preset_names() == NAMES


@pytest.mark.parametrize("name", NAMES)
def test_every_figure_names_a_source_that_is_explained(name):
    document = preset_document(name)
    figures = {key: value for key, value in document.items() if isinstance(value, dict) and key != "sources"}
    assert len(figures) >= 9
    for key, figure in figures.items():
        assert figure["source"] in document["sources"], key
    assert document["peak_to_mean_minute"]["source"] != "assumption"
    assert all(len(text) > 40 for text in document["sources"].values())


@pytest.mark.parametrize("name", NAMES)
def test_peak_minute_is_the_one_asked_for(drawn, name):
    found = profile(drawn[name])
    assert found.peak_minute_rate_per_s == pytest.approx(10, abs=0.02)
    assert found.peak_to_mean_minute_requests == pytest.approx(preset(name).peak_to_mean_minute, rel=0.01)
    assert found.duration_s <= 3600


@pytest.mark.parametrize(
    ("name", "input_mean", "output_mean"),
    [("chat", 800, 200), ("rag", 5900, 215), ("summarize", 50_000, 280), ("batch", 2550, 280)],
)
def test_lengths_are_those_the_preset_speaks_of(drawn, name, input_mean, output_mean):
    found = profile(drawn[name])
    assert found.input_tokens.mean == pytest.approx(input_mean, rel=0.1)
    assert found.output_tokens.mean == pytest.approx(output_mean, rel=0.1)


def test_output_quantiles_follow_the_published_ones(drawn):
    azure = profile(drawn["chat"]).output_tokens
    assert (azure.p50, azure.p95, azure.p99) == pytest.approx((115, 449, 598), rel=0.06)
    code = profile(drawn["agents"]).output_tokens
    assert (code.p50, code.p95, code.p99) == pytest.approx((120, 756, 1090), rel=0.06)
    arxiv = profile(drawn["summarize"]).output_tokens
    assert (arxiv.p50, arxiv.p95) == pytest.approx((167, 736), rel=0.06)


def test_agents_make_about_ten_calls_that_grow_by_about_two_thousand(drawn):
    trace = drawn["agents"]
    order = np.lexsort((trace.arrival_s, trace.session))
    session, tokens = trace.session[order], trace.input_tokens[order]
    grown = np.diff(tokens)[np.diff(session) == 0]
    assert grown.min() > 0
    assert grown.mean() == pytest.approx(2000, rel=0.12)
    inside = (trace.session >= 0).sum() / len(np.unique(trace.session))
    assert 8 < inside < 12


def test_the_ten_largest_clients_carry_two_thirds(drawn):
    counts = sorted(profile(drawn["multitenant"]).tenant_request_counts.values(), reverse=True)
    assert sum(counts[:10]) / sum(counts) == pytest.approx(0.66, abs=0.03)
    assert counts[0] / sum(counts) == pytest.approx(0.136, abs=0.02)
    assert len(counts) > 100


@pytest.mark.parametrize("name", ["agents", "chat", "rag", "summarize"])
def test_prefix_tree_is_exact(drawn, name):
    """A turn's node ends with its answer, and the next prompt starts with all of it."""
    trace = drawn[name]
    tree, node = trace.prefixes, trace.prefix_node
    depth = tree.depth_tokens
    assert np.all(tree.token_count > 0)
    assert np.all(tree.parent < np.arange(len(tree.parent)))
    total = trace.input_tokens + trace.output_tokens
    order = np.lexsort((trace.arrival_s, trace.session))
    for first, second in itertools.pairwise(order):
        if trace.session[first] == trace.session[second]:
            assert depth[node[first]] == total[first]
            assert trace.input_tokens[second] > total[first]
            path = {node[second], tree.parent[node[second]]}
            assert node[first] in path
    last = np.append(np.diff(trace.session[order]) != 0, True)
    tails = order[last]
    assert np.all(depth[node[tails]] <= trace.input_tokens[tails])


def test_prefix_reuse_is_what_such_traffic_shows(drawn):
    share = {name: profile(drawn[name]).shareable_input_fraction for name in ("agents", "chat", "rag", "summarize")}
    assert share["agents"] > 0.9
    assert 0.15 < share["rag"] < 0.4
    assert share["summarize"] < 0.02
    assert profile(drawn["multitenant"]).shareable_input_fraction is None


def test_same_seed_same_bytes():
    one = synthesize("chat", peak_rate_per_s=5, duration_s=600, seed=3)
    two = synthesize("chat", peak_rate_per_s=5, duration_s=600, seed=3)
    other = synthesize("chat", peak_rate_per_s=5, duration_s=600, seed=4)
    for name in ("arrival_s", "input_tokens", "output_tokens", "prefix_node", "session"):
        assert getattr(one, name).tobytes() == getattr(two, name).tobytes()
    assert one.arrival_s.tobytes() != other.arrival_s.tobytes()


def test_the_mean_can_be_given_instead():
    assert profile(synthesize("rag", mean_rate_per_s=8, duration_s=1800, seed=1)).request_count == 14_400


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"name": "chatt"}, "did you mean 'chat'"),
        ({"peak_rate_per_s": None}, "only one"),
        ({"mean_rate_per_s": 3}, "only one"),
        ({"peak_rate_per_s": -1}, "above 0"),
        ({"seed": -1}, "positive"),
        ({"duration_s": 0}, "above 0"),
        ({"name": "batch", "duration_s": 240}, "minutes cannot have"),
    ],
)
def test_bad_wishes_say_how_to_mend_them(changes, words):
    wish = {"name": "chat", "peak_rate_per_s": 5, "duration_s": 600, **changes}
    with pytest.raises(BadInput, match=words):
        synthesize(wish.pop("name"), **wish)
