"""A scenario file: every problem at once, each with line, key, and how to mend it."""

import json
from contextlib import suppress

import pytest
import yaml
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from tokenfleet.app.scenario import load_scenario
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.slo import LatencyTarget

GOOD = """\
name: chat-2026q4
workload:
  lengths: {input: 700:1500, output: 140:300}
  mean_rate: 20
model: meta-llama/Llama-3.3-70B-Instruct
slo: {ttft_p99: 2s, itl_p99.9: 100ms, error_rate: 0.1%}
gpus: [h100-sxm, H200]
"""


def write(folder, text):
    path = folder / "chat.yaml"
    path.write_text(text)
    return path


def said(folder, text):
    path = write(folder, text)
    with pytest.raises(BadInput) as caught:
        load_scenario(path)
    assert caught.value.exit_code == 2
    return [str(problem).replace(f"{folder}/", "") for problem in caught.value.problems]


def test_names_become_canonical_and_quantities_si(tmp_path):
    scenario = load_scenario(write(tmp_path, GOOD))
    assert scenario.gpus == ["h100_sxm", "h200_sxm"]
    assert scenario.workload.duration == 1800.0
    slo = scenario.slo.targets()
    assert slo.latency == (
        LatencyTarget(metric="ttft", quantile=0.99, limit_s=2.0),
        LatencyTarget(metric="itl", quantile=0.999, limit_s=0.1),
    )
    assert slo.error_rate_fraction == pytest.approx(0.001)
    assert scenario.spare_replica_count == 1
    assert scenario.engine.name.startswith("vllm-")


def test_all_problems_of_a_file_come_at_once_in_the_order_of_its_lines(tmp_path):
    text = """\
name: chat 1
workload:
  lengths: {input: 1500:700, output: none}
  mean_rate: 20 rps
  growth: +30%
model: meta-llama/Llama-3.3-71B-Instruct
slo:
  ttft_p99: 2 sec
  itl_99: 50ms
gpus: [h100_sxm, h1000]
precision: [bf16, fp9]
redundancy: {replicas: n+3}
enigne: vllm
seed: one
"""
    problems = said(tmp_path, text)
    lines = [int(problem.split(":")[1]) for problem in problems]
    assert lines == sorted(lines)
    joined = "\n".join(problems)
    for part in (
        'chat.yaml:1: name: "chat 1" cannot name a folder',
        "chat.yaml:3: workload.lengths.input: the median 1500 is above the p95 700",
        "chat.yaml:3: workload.lengths.output:",
        'chat.yaml:4: workload.mean_rate: "20 rps" is not a request rate',
        'chat.yaml:5: workload.growth: "+30%" is not a plain number; write 1.3 for 30 % more',
        "chat.yaml:6: model: ",
        'chat.yaml:9: slo.itl_99: unknown promise "itl_99"; nearest: itl_p99',
        "chat.yaml:10: gpus[1]: ",
        'chat.yaml:11: precision[1]: "fp9" is not known; nearest: fp8',
        'chat.yaml:12: redundancy.replicas: "n+3" is not known; nearest: n+2',
        "chat.yaml:13: enigne: unknown key; nearest: engine",
        'chat.yaml:14: seed: "one" is not a whole number',
    ):
        assert part in joined, joined
    assert "Llama-3.3-70B-Instruct" in next(problem for problem in problems if "model:" in problem)
    assert "h100_sxm" in next(problem for problem in problems if "gpus[1]" in problem)


def test_a_bad_duration_beside_a_good_promise_is_found(tmp_path):
    assert said(tmp_path, GOOD.replace("2s", "2 sec")) == [
        'chat.yaml:6: slo.ttft_p99: "2 sec" is not a duration; write 2s or 2000ms'
    ]


SLO = "slo: {ttft_p99: 2s, itl_p99.9: 100ms, error_rate: 0.1%}"
LENGTHS = "lengths: {input: 700:1500, output: 140:300}"
MODEL = "model: meta-llama/Llama-3.3-70B-Instruct"
GPUS = "gpus: [h100-sxm, H200]"
NOT_A_SCENARIO = "chat.yaml: is not a scenario: the file must hold key: value lines"


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (GOOD, "just words\n", NOT_A_SCENARIO),
        (GOOD, "- a\n- b\n", NOT_A_SCENARIO),
        ("name: chat-2026q4\n", "", "chat.yaml:1: name: is missing"),
        (MODEL, "seed: 2", "chat.yaml:1: model: is missing"),
        (MODEL, "model: 70", "chat.yaml:5: model: 70 is not a name"),
        (SLO, "slo: {}", "chat.yaml:6: slo: promises no latency"),
        (SLO, "slo:", "chat.yaml:6: slo: has no value; such as slo: {ttft_p99: 2s}"),
        ("error_rate: 0.1%", "error_rate: 0.1", "chat.yaml:6: slo.error_rate: 0.1 may mean 0.1 % or 10 %"),
        ("ttft_p99", "ttft_p100", "chat.yaml:6: slo.ttft_p100: unknown promise"),
        ("ttft_p99", "ttft_p0", "chat.yaml:6: slo.ttft_p0: unknown promise"),
        ("ttft_p99", "ttft_p00.0", "chat.yaml:6: slo.ttft_p00.0: unknown promise"),
        ("ttft_p99", "latency", "chat.yaml:6: slo.latency: unknown promise"),
        (GPUS, "gpus: []", "chat.yaml:7: gpus: is an empty list; name at least one"),
        (GPUS, "gpus: h1000", "chat.yaml:7: gpus: "),
        ("mean_rate: 20", "rate: 20", "chat.yaml:4: workload.rate: unknown key; nearest: peak_rate, mean_rate"),
        ("  mean_rate: 20\n", "", "chat.yaml:2: workload: lengths needs one rate, has 0"),
        ("mean_rate: 20", "mean_rate: 20\n  peak_rate: 30", "chat.yaml:2: workload: lengths needs one rate, has 2"),
        (f"  {LENGTHS}\n", "", "chat.yaml:2: workload: does not say where the demand comes from"),
        ("  lengths:", "  preset: chat\n  lengths:", "chat.yaml:2: workload: has preset and lengths"),
        (LENGTHS, "preset: chatt", 'chat.yaml:3: workload.preset: unknown preset "chatt"'),
        (LENGTHS, "trace: no.csv", 'chat.yaml:3: workload.trace: no file "no.csv"'),
        (LENGTHS, "lengths: {input: 700}", "chat.yaml:3: workload.lengths.output: is missing"),
        (GPUS, "engine: {name: vlm}", "chat.yaml:7: engine.name: unknown engine"),
        (GPUS, "engine: vlm", "chat.yaml:7: engine: unknown engine"),
        (GPUS, "engine: {memory_utilization: 0.9}", "chat.yaml:7: engine.memory_utilization: 0.9 may mean"),
        (GPUS, "engine: {max_num_seqs: 9}", "chat.yaml:7: engine.max_num_seqs: unknown key"),
        (GPUS, "prices: {usd_per_gpu_hour: {h1000: 2}}", "chat.yaml:7: prices.usd_per_gpu_hour.h1000: "),
        (GPUS, "prices: {usd_per_gpu_hour: {l4: 0}}", "chat.yaml:7: prices.usd_per_gpu_hour.l4: 0 is not above 0"),
        (GPUS, "prices: {term: on-demand}", 'chat.yaml:7: prices.term: "on-demand" is not known; nearest: on_demand'),
        (GPUS, "router: random", 'chat.yaml:7: router: "random" is not known'),
        (GPUS, "tensor_parallel: [1, two]", 'chat.yaml:7: tensor_parallel[1]: "two" is not a whole number'),
        (GPUS, "seed: -1", "chat.yaml:7: seed: -1 is less than 0; write at least 0"),
        (GPUS, "valid_days: 0", "chat.yaml:7: valid_days: 0 is less than 1; write at least 1"),
        (GPUS, "utilization_cap: 1%", 'chat.yaml:7: utilization_cap: "1%" is less than 25%; write a share between 25'),
        (
            GPUS,
            "utilization_cap: 170%",
            'chat.yaml:7: utilization_cap: "170%" is more than everything; write a share be',
        ),
        (GPUS, "gpu_quota: 0", "chat.yaml:7: gpu_quota: "),
        (GPUS, "gpu_quota: 4\nautoscaling: {max: 2}", "chat.yaml:7: gpu_quota: is for counts that stay as they are"),
        (GPUS, "gpus:", "chat.yaml:7: gpus: has no value; write it as text"),
        (GPUS, "batch: {takes: {share: 9%}, slots: 0}", "chat.yaml:7: batch.slots: 0 is not above 0; write more"),
        (GPUS, "clients: {backoff: 25h}", 'chat.yaml:7: clients.backoff: "25h" is more than 24 h; write at most 24 h'),
        (
            "mean_rate: 20",
            "mean_rate: 20\n  duration: 91d",
            'chat.yaml:5: workload.duration: "91d" is more than 2,160 h; write at most',
        ),
        (
            GPUS,
            "events: [{at: 1s, replicas: -1}]",
            "chat.yaml:7: events[0].replicas: -1 is not above 0; write a whole number above 0, or a list",
        ),
        (
            GPUS,
            "redundancy: n+1",
            'chat.yaml:7: redundancy: "n+1" is not a mapping of key: value; such as redundancy: {',
        ),
        (
            GPUS,
            "pools: {a b: {}}",
            'chat.yaml:7: pools.a b: "a b" cannot name a pool; use letters, digits, _ and -, 40 at',
        ),
        (GPUS, "name: again", "chat.yaml:7: name: is written twice, first on line 1"),
    ],
)
def test_every_kind_of_problem_names_line_and_key(tmp_path, old, new, message):
    assert old in GOOD
    problems = said(tmp_path, GOOD.replace(old, new, 1))
    assert any(problem.startswith(message) for problem in problems), problems


def test_a_trace_has_its_own_rate(tmp_path):
    (tmp_path / "log.csv").write_text("")
    text = GOOD.replace("  lengths: {input: 700:1500, output: 140:300}\n", "  trace: log.csv\n")
    assert said(tmp_path, text) == [
        "chat.yaml:2: workload: a trace has its own rate, but mean_rate is given; "
        "use growth to plan for more than the log shows"
    ]


def test_paths_count_from_the_folder_of_the_scenario(tmp_path, monkeypatch):
    folder = tmp_path / "deep"
    folder.mkdir()
    (folder / "log.csv").write_text("")
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    text = GOOD.replace("lengths: {input: 700:1500, output: 140:300}\n  mean_rate: 20", "trace: log.csv")
    assert load_scenario(write(folder, text)).workload.trace == [str(folder / "log.csv")]


def test_engine_settings_override_the_defaults(tmp_path):
    from tokenfleet import catalog
    from tokenfleet.app.engine_settings import with_overrides

    text = GOOD + "engine: {name: vllm, memory_utilization: 85%, context_limit: 16384, prefix_caching: false}\n"
    choice = load_scenario(write(tmp_path, text)).engine
    defaults = catalog.engine("vllm", gpu=catalog.gpu("h100_sxm"))
    settings = with_overrides(defaults, choice, catalog.model("Qwen/Qwen3-8B"))
    assert (settings.memory_utilization_fraction, settings.context_limit_tokens) == (0.85, 16384)
    assert settings.prefix_caching is False
    assert settings.max_batched_tokens == defaults.max_batched_tokens


def test_the_schema_of_the_types_accepts_what_the_reader_accepts():
    schema = Scenario.model_json_schema()
    assert set(yaml.safe_load(GOOD)) <= set(schema["properties"])
    assert schema["additionalProperties"] is False
    json.dumps(schema)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(
    st.integers(0, len(GOOD) - 1), st.integers(0, 12), st.text(alphabet="abz019 :,.-{}[]\n\t#'\"&*!|>%@n+", max_size=6)
)
def test_a_damaged_scenario_is_read_or_refused_never_a_traceback(tmp_path, start, cut, put):
    path = write(tmp_path, GOOD[:start] + put + GOOD[start + cut :])
    with suppress(BadInput):
        assert isinstance(load_scenario(path), Scenario)


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=8),
    lambda below: st.lists(below, max_size=3) | st.dictionaries(st.text(max_size=5), below, max_size=3),
    max_leaves=6,
)


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(st.sampled_from(sorted(Scenario.model_fields)), values)
def test_any_value_under_any_key_is_read_or_refused(tmp_path, key, value):
    content = yaml.safe_load(GOOD) | {key: value}
    path = write(tmp_path, yaml.safe_dump(content, allow_unicode=True))
    with suppress(BadInput):
        assert isinstance(load_scenario(path), Scenario)


def test_zones_are_names_or_what_each_has(tmp_path):
    more = """\
redundancy: {replicas: n+1, nodes: n+1, zones: n+1, replicas_per_node: 2}
zones: [a, {name: b, region: eu, ingress: false, gpu_limit: 16}, {name: c, region: eu}]
rollout: {max_surge: 2}
cold_start: 6min
"""
    asked = load_scenario(write(tmp_path, GOOD + more))
    losses = asked.losses
    assert (losses.replica_count, losses.node_count, losses.zone_count) == (1, 1, 1)
    assert [(zone.name, zone.stands_alone, zone.gpu_limit_count) for zone in losses.zones] == [
        ("a", True, None),
        ("b", False, 16),
        ("c", True, None),
    ]
    assert asked.cold_start == 360.0
    bound = load_scenario(write(tmp_path, GOOD + more + "data_region: eu\n"))
    assert [zone.name for zone in bound.losses.zones] == ["b", "c"]


@pytest.mark.parametrize(
    ("more", "problem"),
    [
        ("redundancy: {zones: n+1}", "redundancy.zones asks for zones, and none are named; write zones: [a, b, c]"),
        ("zones: {a: {}, b: {gpu_limit: 8}}", "each with its name; write [{name: a}, {name: b, ...}]"),
        ("zones: [a, b, a]", "zones: has a twice; name each zone once"),
        ("zones: [a]\ndata_region: eu", 'no zone lies in data_region "eu"; give zones a region'),
        ("rollout: {max_surge: 0}", "replaces no replica at a time; give max_surge or max_unavailable at least 1"),
        ("zones: [{name: a, gpu_limit: 0}]", "gpu_limit"),
    ],
)
def test_zones_that_cannot_be_are_problems(tmp_path, more, problem):
    assert problem in " ".join(said(tmp_path, GOOD + more + "\n"))


def test_what_a_config_of_a_model_lacks_is_named_with_file_and_key(tmp_path):
    (tmp_path / "mine.json").write_text('{"hidden_size": "x", "num_hidden_layers": -3}')
    (problem,) = said(tmp_path, GOOD.replace(MODEL, "model: mine.json"))
    assert problem.startswith("chat.yaml:5: model: ")
    assert "mine.json: hidden_size: expected a whole number, found 'x' (and 1 more in the file)" in problem


def test_as_much_traffic_may_be_drawn_as_can_be_replayed(tmp_path):
    from tokenfleet.simulator.checking import LONGEST_S

    path = tmp_path / "chat.yaml"
    path.write_text(GOOD.replace("mean_rate: 20", "mean_rate: 20\n  duration: 90d"))
    assert load_scenario(path).workload.duration == LONGEST_S
