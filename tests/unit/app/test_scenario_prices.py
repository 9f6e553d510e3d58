"""Which prices a scenario plans with."""

import pytest

from tokenfleet import catalog
from tokenfleet.app.compose import compose, gpu_prices
from tokenfleet.app.interview import answers_from, scenario_text
from tokenfleet.app.pool_sizes import size_pools
from tokenfleet.app.scenario import load_scenario
from tokenfleet.app.scenario_types import Prices
from tokenfleet.app.service_kinds import service_kind
from tokenfleet.domain.errors import BadInput


class Asked:
    def __init__(self, **prices):
        self.prices = Prices(**prices)


def used(name, **prices):
    return gpu_prices(catalog.gpu(name), Asked(**prices))


def test_the_catalog_reference_unless_told_otherwise():
    (price,) = used("h200_sxm")
    assert price == catalog.reference_price("h200_sxm").price
    assert price.evidence == "reference"


@pytest.mark.parametrize("prices", [{}, {"provider": "aws"}, {"term": "spot"}])
def test_a_price_of_ones_own_wins(prices):
    (price,) = used("h100_sxm", usd_per_gpu_hour={"h100_sxm": 1.23}, **prices)
    assert (price.provider, price.price_usd_per_gpu_hour) == ("own", 1.23)


def test_a_named_provider_gives_its_real_quotes():
    found = used("tpu_v6e", provider="gcp")
    assert sorted(price.price_usd_per_gpu_hour for price in found) == [2.7, 2.97, 3.24]
    assert {price.provider for price in found} == {"gcp"}
    assert used("h100_nvl", provider="oci") == ()


def test_a_term_only_an_index_knows_is_on_sale_nowhere():
    assert [price.evidence for price in catalog.gpu_prices("h100_sxm") if price.term == "reserved_1y"] == ["index"]
    assert used("h100_sxm", term="reserved_1y") == ()


def test_no_price_is_none():
    assert used("gaudi3") == ()


class Silent:
    def say(self, text): ...
    def step(self, step): ...
    def announce(self, text): ...


def scenario(folder, slo, more=""):
    path = folder / "asked.yaml"
    path.write_text(
        "name: asked\nmodel: meta-llama/Llama-3.1-8B-Instruct\ngpus: h100_sxm\nprecision: fp8\nprices: {term: spot}\n"
        "workload: {lengths: {input: 700:1500, output: 140:300}, mean_rate: 4, duration: 10min}\n"
        f"slo: {slo}\n{more}"
    )
    return load_scenario(path)


@pytest.mark.parametrize("promise", ["ttft_p99: 1s", "e2e_p95: 1min", "done_within: 5min, tpot_p50: 50ms"])
def test_what_somebody_waits_for_is_never_planned_on_spot(tmp_path, promise):
    for ask, more in ((compose, ""), (size_pools, "pools: {main: {gpu: h100_sxm}}\n")):
        with pytest.raises(BadInput) as caught:
            ask(scenario(tmp_path, f"{{{promise}}}", more), Silent())
        assert caught.value.problems[0].where == "prices.term"
        assert "somebody waits with a promise of " in caught.value.problems[0].what


@pytest.mark.parametrize(
    "more",
    [
        "prices: {usd_per_gpu_hour: {h100_sxm: 1e308}}\n",
        "buy: {reserved_1y: {h100_sxm: 1e308}}\n",
        "compare: {owned: {gpus: 8, capital: 1e308}}\n",
    ],
)
def test_what_nobody_pays_is_no_price(tmp_path, more):
    path = tmp_path / "dear.yaml"
    path.write_text(
        "name: asked\nmodel: meta-llama/Llama-3.1-8B-Instruct\ngpus: h100_sxm\nslo: {ttft_p99: 1s}\n"
        "workload: {lengths: {input: 700:1500, output: 140:300}, mean_rate: 4}\n" + more
    )
    with pytest.raises(BadInput, match="more than anybody pays"):
        load_scenario(path)


def test_work_with_deadlines_alone_may_be_on_spot(tmp_path):
    asked = compose(scenario(tmp_path, "{done_within: 15min}"), Silent())
    assert {price.term for price in asked.question.prices} == {"spot"}


@pytest.mark.parametrize(("given", "term"), [({}, "spot"), ({"e2e": "10s"}, "on_demand"), ({"e2e": ""}, "spot")])
def test_a_first_scenario_takes_spot_for_deadlines_alone(tmp_path, given, term):
    kind = service_kind("batch")
    path = tmp_path / "first.yaml"
    path.write_text(scenario_text(kind, answers_from(kind, given), file_name="first.yaml"))
    assert load_scenario(path).prices.term == term


def test_a_misspelt_provider_is_named_with_the_nearest(tmp_path):
    scenario(tmp_path, "{done_within: 15min}")
    path = tmp_path / "asked.yaml"
    path.write_text(path.read_text().replace("{term: spot}", "{term: spot, provider: nebias}"))
    with pytest.raises(BadInput) as caught:
        load_scenario(path)
    (found,) = caught.value.problems
    assert 'nobody called "nebias" publishes prices' in found.what
    assert found.mend.startswith("nearest: nebius")
    assert Prices(provider="AWS").provider == "aws"
    assert {"aws", "gcp", "oci"} <= set(catalog.providers())
    assert "market-index" not in catalog.providers()
