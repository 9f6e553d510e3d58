"""``tokenfleet capacity``: the table, its documents, and where each figure comes from."""

import csv
import io
import json
import struct

import pytest
from click.testing import CliRunner

from tokenfleet.app.capacity_document import CELLS, csv_header
from tokenfleet.app.checkpoint_files import measured_bytes
from tokenfleet.app.cli import root
from tokenfleet.app.cli.face import Face
from tokenfleet.domain.errors import BadInput

LLAMA = "meta-llama/Meta-Llama-3.1-8B"


def run(*arguments, json_wanted=False):
    face = Face(json=json_wanted, quiet=True)
    return CliRunner().invoke(root, ["capacity", *arguments], obj=face, standalone_mode=False)


def document(*arguments):
    result = run(*arguments, json_wanted=True)
    assert result.exception is None, result.exception
    return json.loads(result.stdout)


@pytest.fixture(scope="module")
def table():
    return document("--model", LLAMA, "--gpu", "h100_sxm,h200_sxm:1g.18gb", "--precision", "bf16", "--tp", "1,2")


def test_every_deployment_asked_for_has_a_row_and_every_cell_its_evidence(table):
    assert [(row["gpu"], row["tensor_parallel"]) for row in table["rows"]] == [
        ("h100_sxm", 1),
        ("h100_sxm", 2),
        ("h200_sxm:1g.18gb", 1),
    ]
    for row in table["rows"]:
        if not row["fits"]:
            assert row["reasons"]
            continue
        assert set(row["cells"]) == set(CELLS)
        for name, cell in row["cells"].items():
            assert cell["kind"] in {"predicted", "published"}, name
            assert cell["evidence"], name
            if cell["low"] is not None:
                assert cell["low"] <= cell["value"] <= cell["high"], name
        assert sum(row["memory"]["terms_bytes"].values()) == row["memory"]["total_bytes"]


def test_the_table_obeys_what_everybody_knows(table):
    one, two = (row["cells"] for row in table["rows"][:2])
    assert two["stream_tokens_per_s"]["value"] > one["stream_tokens_per_s"]["value"]
    assert two["idle_ttft_s"]["value"] < one["idle_ttft_s"]["value"]
    assert two["output_tokens_per_s"]["value"] < 2 * one["output_tokens_per_s"]["value"]
    assert one["decode_tokens_per_s"]["value"] > one["output_tokens_per_s"]["value"]
    assert two["usd_per_hour"]["value"] == pytest.approx(2 * one["usd_per_hour"]["value"])
    per_hour, rate = one["usd_per_hour"]["value"], one["output_tokens_per_s"]["value"]
    assert one["usd_per_million_output_tokens"]["value"] == pytest.approx(per_hour / rate / 3600 * 1e6)


def test_waiting_grows_with_load(table):
    for row in table["rows"][:2]:
        waits = [point["ttft_p99_s"]["value"] for point in row["loads"]]
        assert [point["load_fraction"] for point in row["loads"]] == [0.3, 0.6, 0.9]
        assert waits == sorted(waits)
        assert all(point["ttft_p50_s"]["value"] <= point["ttft_p99_s"]["value"] for point in row["loads"])
        # At the slow end of the interval the highest load is more than the replica can serve.
        assert row["loads"][2]["ttft_p99_s"]["high"] is None


def test_ranks_against_replicas_on_the_same_gpus(table):
    (group,) = table["same_gpus"]
    assert group["gpu_count"] == 2
    assert [(way["tensor_parallel"], way["replica_count"]) for way in group["ways"]] == [(1, 2), (2, 1)]
    replicas, ranks = group["ways"]
    assert replicas["output_tokens_per_s"] > ranks["output_tokens_per_s"]
    assert replicas["usd_per_million_output_tokens"] < ranks["usd_per_million_output_tokens"]
    assert ranks["stream_tokens_per_s"] > replicas["stream_tokens_per_s"]


def test_stages_and_data_parallel_attention_are_layouts_too():
    asked = ("--model", "Qwen/Qwen3-30B-A3B", "--gpu", "h100_sxm", "--precision", "bf16", "--tp", "1,2")
    found = document(*asked, "--pp", "1,2", "--dp", "1,2")
    names = ("tensor_parallel", "pipeline_parallel", "attention_data_parallel")
    layouts = {tuple(row[name] for name in names): row for row in found["rows"]}
    assert len(layouts) == 8
    assert layouts[1, 2, 1]["fits"]
    assert layouts[1, 2, 1]["cells"]["stream_tokens_per_s"]["evidence"].startswith("pipeline stages")
    assert layouts[1, 1, 2]["fits"]
    # Twice the pools and slots; weights of the experts are shared.
    one, two = layouts[1, 1, 1], layouts[1, 1, 2]
    assert two["memory"]["kv_capacity_tokens"] > 2 * one["memory"]["kv_capacity_tokens"]
    shown = run(*asked, "--dp", "2")
    assert "2 x h100_sxm bf16 DP2" in shown.stdout


def test_what_nobody_sells_has_no_price():
    found = document("--model", "Qwen/Qwen2.5-0.5B-Instruct", "--gpu", "h200_sxm:1g.18gb", "--precision", "bf16")
    cells = found["rows"][0]["cells"]
    assert cells["usd_per_hour"]["value"] is None
    assert "nobody publishes" in cells["usd_per_hour"]["evidence"]
    assert cells["output_tokens_per_s"]["value"] > 0


def test_a_person_sees_a_table_and_what_it_rests_on():
    shown = run("--model", LLAMA, "--gpu", "h100_sxm", "--precision", "bf16", "--tp", "1,2")
    assert shown.exception is None
    assert "replica" in shown.stdout
    assert "2 x h100_sxm bf16" in shown.stdout
    assert "1 x TP2" in shown.stdout
    # Where a line is broken depends on the width of the terminal.
    assert "c is calibrated on your runs, m is measured" in " ".join(shown.stdout.split())
    blocked = run("--model", "meta-llama/Llama-3.3-70B-Instruct", "--gpu", "l40s", "--precision", "bf16", "--tp", "1")
    assert "Weights need" in blocked.stdout


def test_csv_holds_the_same_figures(tmp_path, table):
    path = tmp_path / "table.csv"
    arguments = ("--model", LLAMA, "--gpu", "h100_sxm,h200_sxm:1g.18gb", "--precision", "bf16", "--tp", "1,2")
    assert run(*arguments, "--csv", str(path)).exception is None
    lines = list(csv.DictReader(io.StringIO(path.read_text())))
    assert list(lines[0]) == csv_header()
    for line, row in zip(lines, table["rows"], strict=True):
        if row["fits"]:
            assert float(line["decode_tokens_per_s"]) == row["cells"]["decode_tokens_per_s"]["value"]
            assert float(line["ttft_p99_at_60_load_s"]) == row["loads"][1]["ttft_p99_s"]["value"]
        else:
            assert line["decode_tokens_per_s"] == ""
            assert line["reasons"]
    again = run(*arguments, "--csv", str(path))
    assert isinstance(again.exception, BadInput)


def test_all_problems_of_a_question_come_at_once():
    found = run("--model", LLAMA, "--gpu", "h100,rtx9999", "--tp", "0", "--engine", "xx")
    assert isinstance(found.exception, BadInput)
    assert {problem.where for problem in found.exception.problems} == {"--gpu", "--tp", "--engine"}


def test_an_encoder_is_sent_elsewhere():
    found = run("--model", "BAAI/bge-m3", "--gpu", "l4")
    assert isinstance(found.exception, BadInput)
    assert "encoder" in str(found.exception)


def test_own_runs_mark_their_cells(tmp_path):
    runs = tmp_path / "runs.csv"
    runs.write_text(
        "source_id,model,gpu,engine,engine_version,precision,tp,n_gpus,input_tokens,output_tokens,concurrency,"
        "n_requests,tpot_ms_mean,ttft_ms_mean,quality\n"
        f"mine,{LLAMA},h100_sxm,vllm,0.32.1,bf16,1,1,1000,300,1,50,7.5,40,A\n"
    )
    found = document("--model", LLAMA, "--gpu", "h100_sxm", "--precision", "bf16", "--tp", "1", "--measured", str(runs))
    cells = found["rows"][0]["cells"]
    assert cells["stream_tokens_per_s"]["kind"] == "measured"
    assert cells["stream_tokens_per_s"]["value"] == pytest.approx(1000 / 7.5)
    assert "runs.csv" in cells["stream_tokens_per_s"]["evidence"]
    assert cells["idle_ttft_s"]["value"] == pytest.approx(0.04)
    assert cells["decode_tokens_per_s"]["kind"] == "predicted"


def test_a_calibration_marks_and_moves_the_times(tmp_path):
    from tokenfleet.calibration import Calibrated, Calibration, Correction, write_calibration

    tpot = Correction(
        metric="tpot",
        factor=1.2,
        slope=0.0,
        reference_concurrency=8,
        lowest_concurrency=1,
        highest_concurrency=64,
        run_count=3,
        band_factor=1.25,
        held_out_error_before_fraction=0.2,
        held_out_error_after_fraction=0.05,
    )
    learned = Calibrated(
        model=LLAMA,
        gpu="h100_sxm",
        engine="vllm-0.32",
        tensor_parallel=1,
        attention_data_parallel=1,
        precision="bf16",
        corrections={"tpot": tpot},
    )
    path = tmp_path / "calibration.yaml"
    write_calibration(Calibration(deployments=(learned,), refused={}), path)
    asked = ("--model", LLAMA, "--gpu", "h100_sxm", "--precision", "bf16", "--tp", "1")
    plain, moved = document(*asked), document(*asked, "--calibration", str(path))
    before, after = (found["rows"][0]["cells"]["stream_tokens_per_s"] for found in (plain, moved))
    assert (before["kind"], after["kind"]) == ("predicted", "calibrated")
    assert before["value"] / after["value"] == pytest.approx(1.2, rel=0.001)
    assert "calibrated on 3 measured runs" in after["evidence"]


def test_weights_are_those_of_the_files_beside_the_config(tmp_path):
    config = {
        "model_type": "llama",
        "hidden_size": 1024,
        "num_hidden_layers": 4,
        "num_attention_heads": 8,
        "num_key_value_heads": 8,
        "intermediate_size": 4096,
        "vocab_size": 32000,
        "max_position_embeddings": 4096,
        "tie_word_embeddings": False,
    }
    (tmp_path / "config.json").write_text(json.dumps(config))
    assert measured_bytes(str(tmp_path)) is None
    assert measured_bytes(LLAMA) is None
    index = {"metadata": {"total_size": 300_000_000}, "weight_map": {"a": "one.safetensors"}}
    (tmp_path / "model.safetensors.index.json").write_text(json.dumps(index))
    assert measured_bytes(str(tmp_path / "config.json")) == 300_000_000
    header = json.dumps({"a": {"dtype": "BF16", "shape": [1000, 1000], "data_offsets": [0, 2_000_000]}}).encode()
    (tmp_path / "one.safetensors").write_bytes(struct.pack("<Q", len(header)) + header)
    assert measured_bytes(str(tmp_path)) == 2_000_000
    (tmp_path / "one.safetensors").write_bytes(b"version https://git-lfs")
    with pytest.raises(BadInput, match="not a safetensors file"):
        measured_bytes(str(tmp_path))
    (tmp_path / "one.safetensors").unlink()
    found = document("--model", str(tmp_path), "--gpu", "l4", "--precision", "bf16", "--tp", "1")
    assert found["rows"][0]["memory"]["terms_bytes"]["weights"] == pytest.approx(300_000_000, rel=1e-6)
    assert any("times the formula" in reason for reason in found["rows"][0]["reasons"])
    asked = ["memory", "--model", str(tmp_path), "--gpu", "l4", "--precision", "bf16", "--tp", "1"]
    fits = CliRunner().invoke(root, asked, obj=Face(json=True, quiet=True), standalone_mode=False)
    assert json.loads(fits.stdout)["weights_bytes"] == pytest.approx(300_000_000, rel=1e-6)
