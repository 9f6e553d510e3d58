"""Published client profiles drawn: rates, patterns and lengths of each client come back."""

import json

import numpy as np
import polars as pl
import pytest

from shared import SHARED, needs_shared
from tokenfleet.domain.errors import BadInput
from tokenfleet.workload import draw_clients, profile


def write(folder, number, windows, lengths):
    folder.mkdir(exist_ok=True)
    lines = [",".join(str(value) for value in window) for window in windows]
    (folder / f"chunk-{number}-trace.csv").write_text("\n".join(lines) + "\n")
    (folder / f"chunk-{number}-dataset.json").write_text(json.dumps(lengths))


EARLY = {"input_tokens": "{100: 0.25, 400: 0.75}", "output_tokens": "{7: 1.0}"}
LATE = {"input_tokens": "{9000: 1.0}", "output_tokens": "{7: 0.5, 9: 0.5}"}


@pytest.fixture
def folder(tmp_path):
    steady = [(start, 4.0, 1.0, "Gamma", 1.0, 0.25) for start in range(0, 7200, 600)]
    bursty = [(start, 2.0 if start < 3600 else 6.0, 4.0, "Weibull", 0.4, 0.1) for start in range(0, 7200, 600)]
    bursty[3] = (1800, 0.0, 0.0, "", 0.0, 0.0)
    write(tmp_path / "m", 1, steady, {"0": EARLY})
    write(tmp_path / "m", 2, bursty, {"0": EARLY, "3600": {**LATE, "reason_ratio": "{0.5: 1.0}"}})
    write(tmp_path / "m", 10, steady, {"0": {"input_tokens": "{}", "output_tokens": "{}"}})
    return tmp_path / "m"


def test_rates_patterns_and_lengths_are_those_of_the_files(folder):
    trace, quality = draw_clients(folder, duration_s=7200, seed=3)
    assert trace.tenants == ("chunk-1", "chunk-2")
    assert any("1 clients have rates and no lengths" in text for text in quality.warnings)
    first, second = (trace.arrival_s[trace.tenant == place] for place in (0, 1))
    assert len(first) == pytest.approx(4 * 7200, rel=0.03)
    assert ((second > 1801) & (second < 2399)).sum() == 0
    assert (second >= 3601).sum() == pytest.approx(6 * 3600, rel=0.1)
    gaps = np.diff(first)
    assert gaps.std() / gaps.mean() == pytest.approx(1.0, abs=0.05)
    gaps = np.diff(second[second > 3601])
    # Weibull of shape 0.4.
    assert gaps.std() / gaps.mean() == pytest.approx(3.14, rel=0.1)
    early = (trace.tenant == 1) & (trace.arrival_s < 3500)
    assert set(trace.input_tokens[early].tolist()) == {100, 400}
    assert (trace.input_tokens[early] == 400).mean() == pytest.approx(0.75, abs=0.03)
    late = (trace.tenant == 1) & (trace.arrival_s > 3700)
    assert set(trace.input_tokens[late].tolist()) == {9000}
    assert set(trace.observed.reasoning_tokens[late & (trace.output_tokens == 7)].tolist()) == {4}
    assert set(trace.observed.reasoning_tokens[early].tolist()) == {-1}
    assert profile(trace, quality).tenant_request_counts["chunk-1"] == len(first)


def test_the_input_of_multimodal_clients_is_text_and_images_together(tmp_path):
    steady = [(start, 4.0, 1.0, "Gamma", 1.0, 0.25) for start in range(0, 3600, 600)]
    media = {"image_tokens": "{1200: 0.5, 0: 0.5}", "image_count": "{1: 0.5, 0: 0.5}", "audio_tokens": "{0: 1.0}"}
    write(tmp_path / "mm", 1, steady, {"0": {"text_tokens": "{100: 1.0}", "output_tokens": "{7: 1.0}", **media}})
    write(tmp_path / "mm", 2, steady, {"0": {"image_tokens": "{1200: 1.0}", "output_tokens": "{7: 1.0}"}})
    trace, quality = draw_clients(tmp_path / "mm", duration_s=3600, seed=1)
    assert set(trace.input_tokens.tolist()) == {100, 1300}
    assert (trace.input_tokens == 1300).mean() == pytest.approx(0.5, abs=0.03)
    # Without its text nobody knows how long a prompt is.
    assert any("1 clients have rates and no lengths" in text for text in quality.warnings)


def test_the_same_seed_draws_the_same_bytes_and_a_factor_scales(folder):
    one, two, more = (draw_clients(folder, duration_s=3600, seed=1, rate_factor=factor)[0] for factor in (1, 1, 2))
    assert one.arrival_s.tobytes() == two.arrival_s.tobytes()
    assert one.input_tokens.tobytes() == two.input_tokens.tobytes()
    assert more.request_count / one.request_count == pytest.approx(2, rel=0.05)
    part, _ = draw_clients(folder, start_s=5400, duration_s=600, seed=1)
    assert part.duration_s <= 600
    assert part.request_count == pytest.approx(10 * 600, rel=0.15)


def test_what_cannot_be_drawn_is_said(folder, tmp_path):
    with pytest.raises(BadInput, match="no such folder"):
        draw_clients(tmp_path / "nowhere")
    with pytest.raises(BadInput, match="holds no client profiles"):
        draw_clients(tmp_path)
    with pytest.raises(BadInput) as refused:
        draw_clients(folder, duration_s=-1, rate_factor=0, seed=-1)
    assert len(refused.value.problems) == 3
    (folder / "chunk-1-trace.csv").write_text("0,1,1,Cauchy,1,1\n")
    (folder / "chunk-2-dataset.json").write_text('{"0": {"input_tokens": "import os"}}')
    with pytest.raises(BadInput) as refused:
        draw_clients(folder)
    assert len(refused.value.problems) == 2
    assert "no pattern 'Cauchy'" in str(refused.value)


@needs_shared
@pytest.mark.shared
def test_the_load_of_real_client_profiles_comes_back(tmp_path):
    rates = pl.read_parquet(SHARED / "data" / "traces" / "servegen_deepseek-r1_client_rates.parquet")
    assert rates["client"].n_unique() == 73
    for client in rates["client"].unique().to_list():
        windows = rates.filter(pl.col("client") == client).with_columns(pl.col("pattern").cast(pl.String).fill_null(""))
        columns = ["window_start_s", "rate_rps", "iat_cv", "pattern", "p1", "p2"]
        write(tmp_path / "r1", client, windows.select(columns).iter_rows(), {"0": EARLY})
    trace, _ = draw_clients(tmp_path / "r1", duration_s=86_400, seed=1)
    # Published: 16 requests a second on average, the busiest ten minutes 2.66 times that.
    assert trace.request_count / 86_400 == pytest.approx(16, rel=0.05)
    windows = np.bincount((trace.arrival_s // 600).astype(int), minlength=144)
    assert windows.max() / windows.mean() == pytest.approx(2.66, rel=0.07)
