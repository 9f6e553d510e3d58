"""Scoreboards: what is predicted, refused and how it is grouped."""

import importlib.util
import json
from dataclasses import replace
from pathlib import Path

import pytest

from shared import SHARED, needs_shared
from tokenfleet.calibration import Prediction, lint, predict, read_rows, resolve, score_rows, validate

_SPEC = importlib.util.spec_from_file_location("calibration_rows", Path(__file__).with_name("rows.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
rows = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(rows)

SWEEP = [rows.row(concurrency=load, tpot_ms_unspec=tpot) for load, tpot in ((8, 8.2), (16, 9.1), (64, 15.0))]


def test_an_ordinary_sweep_is_predicted_within_reason(tmp_path: Path) -> None:
    board = validate([rows.write(tmp_path / "m.csv", *SWEEP)])
    assert (board.row_count, board.predicted_row_count, board.refused) == (3, 3, {})
    pooled = {group.metric: group for group in board.groups if group.source is group.gpu is group.engine is None}
    tpot = next(group for group in board.groups if group.metric == "tpot" and group.model_kind is None)
    assert set(pooled) >= {"ttft", "tpot"}
    assert tpot.predicted_count == 3
    assert tpot.median_abs_error_fraction is not None
    assert tpot.median_abs_error_fraction < 0.3


def test_predictions_grow_with_load(tmp_path: Path) -> None:
    answers = [predict(row) for row in read_rows([rows.write(tmp_path / "m.csv", *SWEEP)])]
    values = [answer.values for answer in answers if isinstance(answer, Prediction)]
    assert len(values) == 3
    for metric in ("ttft", "tpot", "output_rate"):
        assert [one[metric] for one in values] == sorted(one[metric] for one in values)


def test_refusals_say_why_and_count(tmp_path: Path) -> None:
    lines = (
        rows.row(gpu="abacus"),
        rows.row(model="nobody/knows"),
        rows.row(model="nobody/knows-either"),
        rows.row(precision="fp3"),
        rows.row(n_gpus=None, tp=None),
        rows.row(concurrency=None),
    )
    board = validate([rows.write(tmp_path / "m.csv", *lines)])
    assert board.predicted_row_count == 0
    assert board.refused["model not in the catalog"] == 2
    assert set(board.refused) == {
        "model not in the catalog",
        "gpu not in the catalog",
        "precision not known to the catalog",
        "layout not published",
        "open loop or load not described",
    }
    assert all(group.predicted_count == 0 for group in board.groups)
    assert all(group.median_abs_error_fraction is None for group in board.groups)


def test_the_document_is_json_with_the_promised_fields(tmp_path: Path) -> None:
    document = validate([rows.write(tmp_path / "m.csv", *SWEEP)]).as_document()
    read = json.loads(json.dumps(document))
    fields = {
        *("source", "gpu", "engine", "model_kind", "metric", "row_count", "predicted_count"),
        *("median_abs_error_fraction", "p90_abs_error_fraction", "bias_fraction", "interval_coverage_fraction"),
    }
    assert fields <= set(read["groups"][0])
    assert read["refused"] == []
    path = rows.write(tmp_path / "n.csv", rows.row(gpu="abacus"))
    assert validate([path]).as_document()["refused"] == [{"reason": "gpu not in the catalog", "count": 1}]


def test_errors_are_relative_and_coverage_counts_the_band(tmp_path: Path) -> None:
    linted = lint(read_rows([rows.write(tmp_path / "m.csv", *SWEEP)]))

    def twice(row: object) -> object:
        answer = predict(row)  # type: ignore[arg-type]
        assert isinstance(answer, Prediction)
        seen = {one.metric: one.value for one in row.measurements}  # type: ignore[attr-defined]
        return replace(answer, values={"tpot": 2 * seen["tpot"], "ttft": seen["ttft"]})

    board = score_rows(linted, predictor=twice)  # type: ignore[arg-type]
    tpot = next(group for group in board.groups if group.metric == "tpot")
    ttft = next(group for group in board.groups if group.metric == "ttft")
    assert (tpot.median_abs_error_fraction, tpot.bias_fraction) == (pytest.approx(1), pytest.approx(1))
    assert (ttft.median_abs_error_fraction, ttft.interval_coverage_fraction) == (pytest.approx(0), 1)
    assert tpot.interval_coverage_fraction == 0


def test_replicas_share_the_load_of_dense_data_parallel_rows(tmp_path: Path) -> None:
    (row,) = read_rows([rows.write(tmp_path / "m.csv", rows.row(n_gpus=4, dp=4, concurrency=64))])
    subject = resolve(row)
    assert getattr(subject, "replica_count", None) == 4
    alone = predict(replace(row, gpu_count=1, attention_data_parallel=1, concurrency=16))
    shared = predict(row)
    assert isinstance(alone, Prediction)
    assert isinstance(shared, Prediction)
    assert shared.values["tpot"] == pytest.approx(alone.values["tpot"])
    assert shared.values["output_rate"] == pytest.approx(4 * alone.values["output_rate"])


def test_a_stated_rate_is_replayed_in_time(tmp_path: Path) -> None:
    lines = [rows.row(request_rate=rate, concurrency=None, n_requests=200) for rate in (1, 20)]
    slow, busy = (predict(row) for row in read_rows([rows.write(tmp_path / "m.csv", *lines)]))
    assert isinstance(slow, Prediction)
    assert isinstance(busy, Prediction)
    assert slow.schedule.load == "open_loop"
    assert slow.values["output_rate"] == pytest.approx(256, rel=0.15)
    assert busy.values["tpot"] > slow.values["tpot"]


def test_a_decode_pool_without_a_worker_count_is_a_bracket(tmp_path: Path) -> None:
    notes = "disagg;decode_tp_size=8;decode_moe_ep_size=1"
    usual = {"model": "deepseek-ai/DeepSeek-R1", "gpu": "b200_sxm", "engine": "sglang", "precision": "fp8", "tp": None}
    told = rows.row(**usual, mode="disagg", n_gpus=None, notes=f"{notes};decode_num_workers=4", concurrency=64)
    untold = rows.row(**usual, mode="disagg", n_gpus=None, notes=notes, concurrency=64)
    one = rows.row(**usual, mode="disagg", n_gpus=None, notes=f"{notes};decode_num_workers=1", concurrency=64)
    found = [predict(row) for row in read_rows([rows.write(tmp_path / "m.csv", told, untold, one)])]
    tpot = [answer.values["tpot"] for answer in found if isinstance(answer, Prediction)]
    assert tpot[0] < tpot[2]
    assert tpot[1] < tpot[2]
    board = validate([tmp_path / "m.csv"])
    assert {score.metric for score in board.scores if score.predicted} == {
        "tpot_decode_pool",
        "tpot_pool_of_unknown_size",
    }
    assert all(score.band is None for score in board.scores if score.metric == "tpot_pool_of_unknown_size")


def test_start_up_logs_are_scored_by_their_pool(tmp_path: Path) -> None:
    path = tmp_path / "logs.csv"
    path.write_text(
        "case,model,gpu,gpu_total_gib,tp,n_gpus,engine,engine_version,weight_precision,gpu_mem_util,max_model_len,"
        "max_num_batched_tokens,available_kv_gib_per_gpu,kv_tokens,quality\n"
        "a,Llama-3.1-8B,rtx4090,23.52,1,1,vllm,0.19.0,bf16,0.9,32768,2048,,41408,A\n"
        "b,nobody/knows,rtx4090,,1,1,vllm,0.19.0,bf16,0.9,32768,2048,,41408,A\n"
        "c,Llama-3.1-8B,h100_sxm,,1,1,vllm,0.19.0,bf16,0.9,32768,2048,,,A\n",
        encoding="utf-8",
    )
    board = validate([path])
    assert (board.row_count, board.predicted_row_count) == (3, 1)
    assert set(board.refused) == {"model not in the catalog", "no pool figure that can be compared"}
    pool = next(group for group in board.groups if group.metric == "kv_pool" and group.source is None)
    assert pool.median_abs_error_fraction is not None
    assert pool.median_abs_error_fraction < 0.03


@needs_shared
@pytest.mark.shared
@pytest.mark.long
def test_public_rows_are_predicted_and_most_are_close() -> None:
    names = ("inferencex_silicon", "trtllm_perf", "argonne_llm_bench")
    board = validate([SHARED / "data" / "measured" / f"{name}.csv" for name in names])
    assert board.predicted_row_count >= 0.9 * board.row_count
    pooled = {group.metric: group for group in board.groups if group.source is group.gpu is group.model_kind is None}
    tpot = next(group for group in board.groups if group.metric == "tpot" and group.source is None)
    assert pooled
    assert tpot.median_abs_error_fraction is not None
    assert tpot.median_abs_error_fraction < 0.2
