"""What a replay finds wrong with a fleet is said by the keys of the scenario it was made from."""

import pytest

from tokenfleet.app.cli import main

SCENARIO = """\
name: asked
model: meta-llama/Llama-3.1-8B-Instruct
workload:
  lengths: {input: 700:1500, output: 140:300}
  mean_rate: 1
  duration: 6min
slo: {ttft_p95: 2s}
"""
TOO_SMALL = (
    "engine: {name: vllm, max_batched_tokens: 512, max_sequence_count: 1024}",
    "9: engine.max_sequence_count: 1024 sequences take 1024 tokens of a step, and its budget is 512",
)
DRAFTS = (
    "engine:\n  name: vllm-0.16\n  speculation: {tokens: 3, acceptance: 80%}\nbatch: {takes: {share: 30%}}",
    "11: engine.speculation: speculative decoding beside a batch lane",
)
URGENT = (
    "batch: {takes: {share: 30%}}\nengine:\n  scheduling: priority",
    "11: engine.scheduling: priority beside a batch lane",
)
WHOLE = (
    "engine:\n  name: vllm-0.11\n  chunked_prefill: false\n  max_batched_tokens: 512",
    "12: engine.max_batched_tokens: without chunked prefill vLLM needs a step for its longest request",
)
WHOLE_IN_A_POOL = (
    "engine: {chunked_prefill: false}\npools:\n"
    "  b: {gpu: l40s, max_batched_tokens: 512, takes: {share: 50%}}\n  main: {gpu: l40s}",
    "11: pools.b.max_batched_tokens: without chunked prefill vLLM needs a step for its longest request",
)
GROUPS = (
    "router: by_length\ngroups:\n  a: {gpu: l40s, up_to: 100}\n  b: {gpu: l40s, up_to: 200}",
    "10: groups: every group has a bound, and by_length sends nobody beyond it",
)


@pytest.mark.parametrize(
    ("command", "more", "said"),
    [
        ("plan", *TOO_SMALL),
        *(("simulate", *each) for each in (TOO_SMALL, DRAFTS, URGENT, GROUPS, WHOLE, WHOLE_IN_A_POOL)),
    ],
)
def test_what_a_replay_finds_wrong_names_file_line_and_key(tmp_path, capsys, command, more, said):
    path = tmp_path / "asked.yaml"
    gpus = "" if "groups:" in more else "gpus: h100_sxm"
    path.write_text(SCENARIO + f"{gpus}\n{more}\nprecision: fp8\n")
    with pytest.raises(SystemExit) as stopped:
        main([command, str(path), "-o", str(tmp_path / "out"), "--quiet"])
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert f"{path}:{said}" in told.replace("\n", " ")
    assert "fleet." not in told
    assert "another gpu" not in told


@pytest.mark.parametrize("pools", ["", "pools: {main: {}}\n"])
def test_more_samples_than_a_replay_takes_are_the_fault_of_the_interval(tmp_path, capsys, pools):
    path = tmp_path / "asked.yaml"
    path.write_text(SCENARIO + f"gpus: h100_sxm\nprecision: fp8\n{pools}")
    with pytest.raises(SystemExit) as stopped:
        main(["simulate", str(path), "-o", str(tmp_path / "out"), "--quiet", "--interval", "10us"])
    assert stopped.value.code == 2
    told = capsys.readouterr().err
    assert told.startswith("--interval: a sample every 0.01 ms gives more than 1,000,000 in 5 min")
    assert "0.36 ms is the least" in told
