"""Settings that a source states once, layouts completed, and what an interval depends on."""

import importlib.util
from pathlib import Path

import pytest

from tokenfleet.calibration import Refusal, Row, Subject, read_rows, resolve
from tokenfleet.calibration.bands import band_factor, novelty
from tokenfleet.calibration.recipes import poll_every, with_recipe, with_stated_load
from tokenfleet.calibration.schedule import length_spread, load_of, rule_of
from tokenfleet.calibration.step_walk import MIXED, PREFILL_FIRST, RESERVING

_SPEC = importlib.util.spec_from_file_location("calibration_rows", Path(__file__).with_name("rows.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
rows = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(rows)

DASHBOARD = "origin=InferenceX dashboard dump"


def read(tmp_path: Path, **cells: object) -> Row:
    (row,) = read_rows([rows.write(tmp_path / "m.csv", rows.row(**cells))])
    return row


def subject(tmp_path: Path, **cells: object) -> Subject:
    found = resolve(read(tmp_path, **cells))
    assert isinstance(found, Subject)
    return found


def test_dashboard_runs_carry_the_settings_of_their_scripts(tmp_path: Path) -> None:
    setup = {"engine": "sglang", "gpu": "b200_sxm", "model": "deepseek-ai/DeepSeek-R1", "precision": "fp8", "tp": 8}
    row = read(tmp_path, **setup, n_gpus=8, notes=DASHBOARD)
    assert with_recipe(row).kv_precision == "fp8"
    assert with_recipe(row).max_batched_tokens == 32_768
    assert (poll_every(row), poll_every(read(tmp_path, **setup, concurrency=4, notes=DASHBOARD))) == (30, 10)
    assert length_spread(row, "closed_loop") == (0.8, 1.0)
    other = read(tmp_path, **setup, n_gpus=8)
    assert with_recipe(other) is other
    assert (poll_every(other), length_spread(other, "closed_loop")) == (1, (1.0, 1.0))


def test_a_layout_in_a_name_is_read(tmp_path: Path) -> None:
    found = with_recipe(read(tmp_path, source_id="dstack_bench", tp=None, n_gpus=None, notes="config 8xMi300x 2FP8-x"))
    assert (found.gpu_count, found.tensor_parallel) == (8, 4)


def test_whole_systems_become_replicas_of_the_fewest_ranks_with_room(tmp_path: Path) -> None:
    found = subject(tmp_path, model="llama2-70b-99", precision="fp8", tp=None, n_gpus=8, engine="trtllm")
    assert found.deployment.layout.tensor_parallel == 2
    assert found.replica_count == 4
    assert "layout not published" in found.assumptions[0]
    refused = resolve(read(tmp_path, model="meta-llama/Llama-3.1-405B", tp=None, n_gpus=2))
    assert isinstance(refused, Refusal)
    assert refused.reason == "layout not published"


@pytest.mark.parametrize(
    ("engine", "version", "rule"),
    [
        ("vllm", "0.12.0", MIXED),
        ("vllm", "0.5.4", PREFILL_FIRST),
        ("sglang", "0.5.9", PREFILL_FIRST),
        ("trtllm", "1.2.0rc6.post2", RESERVING),
        ("nim-trtllm", "NIM 1.8.0", RESERVING),
        ("deepspeed", None, MIXED),
    ],
)
def test_engines_batch_by_their_own_rule(tmp_path: Path, engine: str, version: str | None, rule: int) -> None:
    assert rule_of(subject(tmp_path, engine=engine, engine_version=version).deployment) == rule


def test_loads_are_told_apart(tmp_path: Path) -> None:
    assert load_of(read(tmp_path)) == "closed_loop"
    assert load_of(read(tmp_path, workload="fixed batch")) == "burst"
    assert load_of(read(tmp_path, concurrency=None, request_rate="inf", n_requests=500)) == "burst"
    assert load_of(read(tmp_path, concurrency=None, workload="offline max throughput (all queued)")) == "saturated"
    assert load_of(read(tmp_path, mode="disagg", notes="decode_num_workers=2")) == "decode_pool"
    assert load_of(read(tmp_path, mode="disagg")) == "pool_of_unknown_size"
    assert load_of(read(tmp_path, concurrency=None)) is None


def test_what_is_new_decides_the_interval(tmp_path: Path) -> None:
    assert novelty(subject(tmp_path)) in {"known", "new_model"}
    assert novelty(subject(tmp_path, model="google/gemma-2-9b-it")) == "new_model"
    assert novelty(subject(tmp_path, gpu="l4")) == "new_gpu"
    assert novelty(subject(tmp_path, engine="deepspeed", engine_version=None)) == "new_engine"
    assert novelty(subject(tmp_path, gpu="mi300x")) == "new_vendor"
    known, model, gpu = (band_factor("tpot", kind, experts=False) for kind in ("known", "new_model", "new_gpu"))
    assert known is not None
    assert model is not None
    assert gpu is not None
    assert 1.2 < known <= model <= gpu < 2
    assert band_factor("tpot", "new_vendor", experts=True) is None
    dense, experts = (band_factor("output_rate", "known", experts=kind) for kind in (False, True))
    assert 1 < dense < experts


def test_layers_spread_over_gpus_are_stages(tmp_path: Path) -> None:
    layout = subject(tmp_path, engine="llama.cpp", engine_version=None, tp=2, n_gpus=2, concurrency=1).deployment.layout
    assert (layout.tensor_parallel, layout.pipeline_parallel) == (1, 2)


def test_ranks_that_do_not_divide_the_heads_are_experts_with_data_parallel_attention(tmp_path: Path) -> None:
    setup = {"model": "deepseek-ai/DeepSeek-R1", "precision": "fp8", "engine": "sglang", "concurrency": 512}
    pool = "decode_tp_size=48;decode_attention_dp_size=1;decode_moe_tp_size=6;decode_moe_ep_size=8"
    found = subject(tmp_path, **setup, gpu="gb200", mode="disagg", tp=None, n_gpus=None, notes=pool)
    assert (found.deployment.layout.attention_data_parallel, found.deployment.layout.expert_parallel) == (48, 48)
    assert found.deployment.layout.gpu_count == 48
    assert "do not divide the heads" in found.assumptions[0]
    refused = resolve(read(tmp_path, gpu="l40s", tp=3, n_gpus=3))
    assert isinstance(refused, Refusal)
    assert "does not divide" in refused.reason


def test_a_tensor_degree_that_counts_data_parallel_ranks_is_divided(tmp_path: Path) -> None:
    setup = {"model": "deepseek-ai/DeepSeek-V3.2", "gpu": "h200_sxm", "precision": "fp8", "engine": "sglang"}
    found = subject(tmp_path, **setup, tp=8, dp=8, n_gpus=8)
    assert (found.deployment.layout.tensor_parallel, found.deployment.layout.attention_data_parallel) == (1, 8)
    assert found.replica_count == 1


@pytest.mark.parametrize(
    ("written", "read_as"), [("awq-int4", "int4"), ("uint4", "int4"), ("unset", "bf16"), (None, "bf16")]
)
def test_precisions_as_sources_write_them(tmp_path: Path, written: str | None, read_as: str) -> None:
    assert subject(tmp_path, precision=written).deployment.precision == read_as


def test_a_part_named_in_the_notes_settles_an_open_name(tmp_path: Path) -> None:
    found = subject(tmp_path, gpu="gh200", notes="accel=NVIDIA GH200 Grace Hopper Superchip 144GB")
    assert found.gpu.name == "gh200_144gb"
    assert isinstance(resolve(read(tmp_path, gpu="gh200")), Refusal)


def test_a_sweep_of_prompt_counts_sends_them_all_at_once(tmp_path: Path) -> None:
    setup = {"source_id": "dstack_bench", "concurrency": None, "n_requests": 64}
    swept = with_stated_load(read(tmp_path, **setup, workload="result_vllm_short"))
    assert (swept.request_rate_per_s, load_of(swept)) == (float("inf"), "burst")
    assert load_of(with_stated_load(read(tmp_path, **setup, workload="result_vllm_QPS_high"))) is None
    assert load_of(with_stated_load(read(tmp_path, **{**setup, "source_id": "mine"}, workload="a_short"))) is None


def test_layouts_over_several_nodes_are_as_unsure_as_a_new_gpu(tmp_path: Path) -> None:
    setup = {"model": "deepseek-ai/DeepSeek-R1", "precision": "fp8", "engine": "trtllm"}
    assert novelty(subject(tmp_path, **setup, tp=16, ep=16, n_gpus=16)) == "new_gpu"
    assert novelty(subject(tmp_path, **setup, gpu="h200_sxm", tp=8, ep=8, n_gpus=8)) == "known"
