"""The reader changes units and types, nothing else."""

import importlib.util
import math
from pathlib import Path

import pytest

from tokenfleet.calibration import read_rows
from tokenfleet.domain.errors import BadInput

_SPEC = importlib.util.spec_from_file_location("calibration_rows", Path(__file__).with_name("rows.py"))
assert _SPEC is not None
assert _SPEC.loader is not None
rows = importlib.util.module_from_spec(_SPEC)
_SPEC.loader.exec_module(rows)


def test_units_are_si_and_empty_is_unknown(tmp_path: Path) -> None:
    path = rows.write(tmp_path / "mine.csv", rows.row(output_tok_s=1500, notes="moe_tp=4;origin=a sweep"))
    (row,) = read_rows([path])
    assert row.row_id == "mine.csv:2"
    assert (row.value("ttft"), row.value("tpot"), row.value("e2e")) == (0.09, 0.009, None)
    assert row.value("output_rate") == 1500
    assert (row.expert_parallel, row.attention_data_parallel, row.request_count) == (1, 1, None)
    assert row.facts == {"moe_tp": "4", "origin": "a sweep"}


def test_a_rate_is_a_number_everything_at_once_or_unknown(tmp_path: Path) -> None:
    lines = [rows.row(request_rate=rate) for rate in ("2.5", "inf", "5.0; 10.0")]
    found = [row.request_rate_per_s for row in read_rows([rows.write(tmp_path / "mine.csv", *lines)])]
    assert found == [2.5, math.inf, None]


def test_all_problems_at_once(tmp_path: Path) -> None:
    bad = rows.write(tmp_path / "bad.csv", rows.row(tp="two"), rows.row(ttft_ms_unspec=-1))
    (tmp_path / "short.csv").write_text("model,gpu\nx,y\n", encoding="utf-8")
    with pytest.raises(BadInput) as caught:
        read_rows([bad, tmp_path / "short.csv", tmp_path / "gone.csv"])
    told = [(problem.where.rsplit("/", 1)[-1], problem.what) for problem in caught.value.problems]
    assert told[0] == ("bad.csv:2", "tp is 'two', not a number")
    assert told[1][0] == "bad.csv:3"
    assert told[2] == ("short.csv", "lacks the column(s) engine, input_tokens, output_tokens")
    assert told[3] == ("gone.csv", "no such file")


def test_settings_left_to_the_engine_are_unknown(tmp_path: Path) -> None:
    path = tmp_path / "mine.csv"
    path.write_text(
        "model,gpu,engine,input_tokens,output_tokens,max_num_batched_tokens,ep,tp,dp\na,b,c,1,1,default,tp*dp,4,2\n",
        encoding="utf-8",
    )
    (row,) = read_rows([path])
    assert row.max_batched_tokens is None
    assert row.expert_parallel == 8
