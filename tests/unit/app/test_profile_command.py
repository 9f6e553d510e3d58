"""The face of a log: quality first, the names scripts read, what is refused, and nothing that was not asked for."""

import csv
import json
import math
from pathlib import Path
from urllib.parse import parse_qs, urlsplit

import pytest

from tokenfleet import workload
from tokenfleet.app import prometheus
from tokenfleet.app.cli import main
from tokenfleet.app.intake import Files, take_in
from tokenfleet.app.report.charts import Chart
from tokenfleet.app.report.traffic import traffic_page
from tokenfleet.app.traffic_document import traffic_document
from tokenfleet.app.traffic_words import traffic_blocks
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.trace import Workload

LOGS = Path(__file__).resolve().parents[2] / "data" / "logs"
LENGTHS = {"p50", "p90", "p95", "p99", "max", "mean"}
NAMES = {
    "rows_read", "rows_kept", "rows_dropped", "input_tokens", "output_tokens", "peak_to_mean_minute_requests",
    "peak_to_mean_minute_tokens", "interarrival_cv", "detected", "warnings",
}  # fmt: skip


@pytest.fixture
def run(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("COLUMNS", "100")

    def run(*arguments):
        with pytest.raises(SystemExit) as ended:
            main([str(argument) for argument in arguments])
        out, err = capsys.readouterr()
        return ended.value.code, out, err

    return run


def document(run, *arguments):
    code, out, err = run("profile", *arguments, "--json")
    assert (code, err) == (0, "")
    return json.loads(out)


def test_the_names_that_scripts_read(run):
    found = document(run, LOGS / "helicone_requests.jsonl")
    assert set(found) >= NAMES
    assert set(found["input_tokens"]) == set(found["output_tokens"]) == LENGTHS
    assert set(found["detected"]) >= {"format", "unit", "zone", "cached_inside_input"}
    assert found["rows_read"] == found["rows_kept"] + sum(found["rows_dropped"].values()) == 20
    trace, _ = workload.read_trace(LOGS / "helicone_requests.jsonl")
    assert found["input_tokens"]["mean"] == trace.input_tokens.mean()
    assert found["output_tokens"]["max"] == trace.output_tokens.max()
    assert found["kind"] == "request log"
    assert found["confidence"]["level"] == "low", "two minutes say little"


def test_quality_comes_before_the_description(run):
    code, out, err = run("profile", LOGS / "helicone_requests.jsonl")
    assert (code, err) == (0, "")
    places = [
        out.index(text) for text in ("20 rows read = 17 kept + 3 dropped", "1 dropped: failed", "Helicone", "p95")
    ]
    assert places == sorted(places)
    for text in ("--unfinished impute", "llama-3.3-70b", "team-search", "7 sessions", "times the mean by requests"):
        assert text in out


def test_several_formats_become_one_trace(run):
    found = document(run, LOGS / "helicone_requests.jsonl", LOGS / "litellm_spendlogs.jsonl")
    assert found["rows_read"] == 40
    assert "Helicone" in found["detected"]["format"]
    assert "LiteLLM" in found["detected"]["format"]


def test_files_are_written_and_nothing_else(run, tmp_path):
    arguments = ["-o", "p.json", "--html", "p.html", "--rejects", "r.csv"]
    code, out, _ = run("profile", LOGS / "helicone_requests.jsonl", *arguments)
    assert code == 0
    assert sorted(path.name for path in tmp_path.iterdir()) == ["p.html", "p.json", "r.csv"]
    assert workload.load_profile("p.json").request_count == 17
    rows = list(csv.DictReader(Path("r.csv").read_text().splitlines()))
    assert [(row["where"].rpartition(":")[2], row["reason"]) for row in rows] == [
        ("6", "input tokens unknown"),
        ("9", "retried: the call that succeeded is kept"),
        ("16", "failed"),
    ]
    assert "wrote p.json" in out
    assert "tokenfleet synth p.json" in out


def test_the_log_of_a_whole_day_ends_with_its_last_request(run, tmp_path):
    log, last = tmp_path / "day.csv", {}
    for end in (86_390, 80_000):
        log.write_text("time_s,input_tokens,output_tokens\n0,10,10\n40000,10,10\n" + f"{end},10,10\n")
        last[end] = document(run, log)["confidence"]["level"]
    assert last == {86_390: "high", 80_000: "medium"}


def test_a_profile_held_against_itself_did_not_move_and_against_another_did(run):
    run("profile", LOGS / "helicone_requests.jsonl", "-o", "old.json")
    assert document(run, LOGS / "helicone_requests.jsonl", "--compare", "old.json")["changes"] == []
    moved = document(run, LOGS / "trace_mooncake_blksz512.jsonl", "--compare", "old.json")["changes"]
    assert {"name", "unit", "old", "new", "text", "demand"} == set(moved[0])
    assert any("tenant" in change["name"] for change in moved)
    _, out, _ = run("profile", LOGS / "helicone_requests.jsonl", "--compare", "old.json")
    assert "nothing moved by 5 % or more" in out
    assert "+0% tokens/s" in out


def test_names_are_hashed_with_the_salt_on_every_face(run):
    arguments = ["--anonymize", "salt-of-many-letters", "-o", "p.json", "--html", "p.html"]
    code, out, _ = run("profile", LOGS / "helicone_requests.jsonl", *arguments)
    assert code == 0
    for text in (out, Path("p.json").read_text(), Path("p.html").read_text()):
        assert "team-search" not in text
        assert "salt-of-many-letters" not in text
    assert "tenant-" in out
    assert "hashed with a salt" in out


def test_names_in_a_drawn_trace_are_hashed_too(run):
    run("synth", "multitenant", "-o", "t.parquet", "--rate", 3, "--duration", "5min")
    plain = document(run, "t.parquet")
    hashed = document(run, "t.parquet", "--anonymize", "salt-of-many-letters")
    assert hashed["detected"]["names"] == "hashed with a salt"
    assert plain["tenant_request_counts"]["client-000"] == max(hashed["tenant_request_counts"].values())
    assert all(name.startswith("tenant-") for name in hashed["tenant_request_counts"])
    assert "client-0" not in json.dumps(hashed)


def test_no_prompt_reaches_any_face(run, tmp_path):
    secret = "MY-SECRET-PROMPT"
    lines = [json.loads(line) for line in (LOGS / "litellm_spendlogs.jsonl").read_text().splitlines()]
    for line in lines:
        line["messages"] = [{"role": "user", "content": secret}]
        line["response"] = {"choices": [{"message": {"content": secret}}]}
    log = tmp_path / "log.jsonl"
    log.write_text("\n".join(map(json.dumps, lines)))
    code, out, _ = run("profile", log, "-o", "p.json", "--html", "p.html", "--rejects", "r.csv")
    assert code == 0
    written = [path.read_text() for path in tmp_path.iterdir() if path != log]
    assert not any(secret in text for text in (out, json.dumps(document(run, log)), *written))


def test_daily_totals_give_a_range_and_never_one_peak(run):
    found = document(run, LOGS / "litellm_daily_activity.json")
    assert set(found) >= NAMES
    assert found["kind"] == "daily totals"
    assert found["peak_to_mean_minute_requests"] is None
    low, high = found["peak_to_mean_minute_requests_range"]
    assert 1 < low < high
    assert found["peak_minute_rate_per_s"] is None
    assert set(found["input_tokens"]) == LENGTHS
    assert found["input_tokens"]["p50"] is None
    assert found["input_tokens"]["mean"] > 0
    _, out, _ = run("profile", LOGS / "litellm_daily_activity.json")
    assert "1.5 to 5 times" in out


def test_minute_sums_give_one_peak(run, tmp_path):
    start = 1_774_742_400
    buckets = [
        {
            "object": "bucket",
            "start_time": start + 60 * minute,
            "end_time": start + 60 * (minute + 1),
            "results": [
                {
                    "object": "organization.usage.completions.result",
                    "num_model_requests": count,
                    "input_tokens": 10 * count,
                    "input_cached_tokens": count,
                    "output_tokens": 2 * count,
                }
            ],
        }
        for minute, count in enumerate([10, 30, 20])
    ]
    path = tmp_path / "usage.json"
    path.write_text(json.dumps({"object": "page", "data": buckets, "has_more": False}))
    found = document(run, path)
    assert found["kind"] == "minute aggregates"
    assert found["peak_to_mean_minute_requests"] == pytest.approx(1.5)
    assert found["peak_minute_rate_per_s"] == pytest.approx(0.5)
    assert (found["input_tokens"]["mean"], found["cached_fraction"]) == (10, pytest.approx(0.1))


@pytest.mark.parametrize("name", [path.name for path in sorted(LOGS.glob("*.prom"))])
def test_metrics_pages_say_totals_and_ranges(run, name):
    found = document(run, LOGS / name)
    assert set(found) >= NAMES
    assert found["kind"] == "metrics page"
    assert found["peak_to_mean_minute_requests"] is None
    for each in found["histograms"].values():
        low, high = each["p99_range"]
        assert high is None or low <= high
    assert run("profile", LOGS / name)[0] == 0


def test_two_pages_tell_what_happened_between(run, tmp_path):
    for name, count in (("a.prom", 100), ("b.prom", 160)):
        (tmp_path / name).write_text(f'vllm:prompt_tokens_total{{engine="0"}} {count}\n')
    assert document(run, "a.prom", "b.prom")["counters"]["prompt_tokens"] == 60


@pytest.mark.parametrize("option", ["-o", "--html", "--rejects"])
def test_sums_make_no_profile(run, option, tmp_path):
    code, out, err = run("profile", LOGS / "litellm_daily_activity.json", option, "x.json")
    assert (code, out) == (2, "")
    assert f"{option}: the files are daily totals" in err
    assert list(tmp_path.iterdir()) == []


def test_large_tables_are_counted_in_parts_to_the_same_figures(run, tmp_path, monkeypatch):
    drawn = workload.synthesize("multitenant", mean_rate_per_s=20, duration_s=300, seed=1)
    rows = zip(drawn.arrival_s, drawn.input_tokens, drawn.output_tokens, strict=True)
    lines = [f"{1_774_742_400 + arrival:.6f},{prompt},{answer}" for arrival, prompt, answer in rows]
    (tmp_path / "log.csv").write_text("\n".join(["arrival,input_tokens,output_tokens", *lines]))
    whole = document(run, "log.csv", "--in-parts", "no", "--time-unit", "s")
    parts = document(run, "log.csv", "--in-parts", "yes", "--time-unit", "s")
    assert "parts" in parts["detected"]
    for name in NAMES - {"detected", "warnings"}:
        assert parts[name] == whole[name], name
    monkeypatch.setattr("tokenfleet.app.intake._WHOLE_BYTES", 1000)
    assert "parts" in document(run, "log.csv", "--time-unit", "s")["detected"]
    # Of a spend log no row means anything without its format, so it is read whole however large it is.
    assert "parts" not in document(run, LOGS / "litellm_spendlogs.jsonl")["detected"]
    code, _, err = run("profile", LOGS / "litellm_spendlogs.jsonl", "--in-parts", "yes")
    assert code == 2
    assert "needs whole files" in err


def test_what_is_ambiguous_is_asked_with_the_option_that_answers(run, tmp_path):
    (tmp_path / "log.csv").write_text("arrival,input_tokens,output_tokens\n1000,5,6\n2000,5,6\n3000,7,8\n")
    code, out, err = run("profile", "log.csv")
    assert (code, out) == (2, "")
    assert "say --time-unit s, or ms, us, ns" in err
    assert run("profile", "log.csv", "--time-unit", "ms")[0] == 0


def test_columns_are_named_by_role(run, tmp_path):
    (tmp_path / "log.csv").write_text("wann,rein,raus\n2026-01-01T00:00:00Z,5,6\n2026-01-01T00:01:30Z,7,8\n")
    code, _, err = run("profile", "log.csv")
    assert code == 2
    assert "--columns arrival=NAME" in err
    code, _, err = run("profile", "log.csv", "--columns", "time=wann,input_tokens=rain,output_tokens=raus")
    assert code == 2
    assert "--columns time: there is no such role; did you mean arrival? roles: arrival, input_tokens" in err
    assert "--columns input_tokens: log.csv has no column 'rain'; did you mean 'rein'?" in err
    found = document(run, "log.csv", "--columns", "arrival=wann,input_tokens=rein", "--columns", "output_tokens=raus")
    assert (found["rows_kept"], found["input_tokens"]["max"]) == (2, 7)
    code, _, err = run("profile", "log.csv", "--columns", "arrival")
    assert code == 2
    assert "ROLE=COLUMN" in err


@pytest.mark.parametrize(
    ("arguments", "text"),
    [
        (["missing.jsonl"], "there is no such file"),
        (["{logs}/vllm_bench_serve.json"], "is a benchmark result"),
        (["{logs}/helicone_requests.jsonl", "--anonymize", "short"], "--anonymize: has 5 characters"),
        (["{logs}/helicone_requests.jsonl", "--format", "helicon"], "--format: there is no format"),
        (["{logs}/helicone_requests.jsonl", "--in-parts", "yes", "--unfinished", "impute"], "--in-parts: does not go"),
        (["{logs}/helicone_requests.jsonl", "-o", "{logs}/helicone_requests.jsonl"], "is a file that is read"),
        (["{logs}/helicone_requests.jsonl", "-o", "x", "--html", "x"], "is written by -o already"),
        (["{logs}/helicone_requests.jsonl", "-o", "no/p.json"], "there is no folder"),
        (["{logs}/helicone_requests.jsonl", "--compare", "none.json"], "there is no such file"),
    ],
)
def test_what_cannot_be_done_is_refused_and_nothing_is_written(run, tmp_path, arguments, text):
    code, out, err = run("profile", *(each.format(logs=LOGS) for each in arguments))
    assert (code, out) == (2, "")
    assert text in err
    assert list(tmp_path.iterdir()) == []


def test_progress_is_told_part_by_part(tmp_path):
    told = []
    (tmp_path / "log.csv").write_text("arrival,input_tokens,output_tokens\n1774742400.5,5,6\n1774742401.5,5,6\n")
    take_in(
        Files(paths=[tmp_path / "log.csv"], time_unit="s", parts="yes"),
        progress=lambda text, done, total: told.append((text, done, total)),
    )
    assert told
    assert all(0 <= done <= total for _, done, total in told)
    assert not math.isnan(len(told))


def test_the_page_says_what_was_found_and_escapes_it(run, tmp_path):
    (tmp_path / "log.csv").write_text(
        "arrival,input_tokens,output_tokens,tenant\n"
        + "\n".join(f"2026-01-01T00:0{minute}:00Z,{minute + 5},6,<script>x</script>" for minute in range(5))
    )
    assert run("profile", "log.csv", "--html", "p.html")[0] == 0
    text = Path("p.html").read_text()
    assert "<script>x</script>" not in text
    assert "&lt;script&gt;x&lt;/script&gt;" in text
    assert "Trust: low" in text
    outside = text.replace("http-equiv", "").split('id="plotly"')[0]
    assert "http:" not in outside
    assert "https:" not in outside


@pytest.mark.parametrize("lines", [1, 2, 3])
@pytest.mark.parametrize(
    "path", [path for path in sorted(LOGS.iterdir()) if path.suffix != ".json"], ids=lambda p: p.name
)
def test_the_first_lines_of_a_log_are_described_or_refused(path, lines, tmp_path):
    cut = tmp_path / path.name
    cut.write_text("\n".join(path.read_text().splitlines()[:lines]))
    try:
        found = take_in(Files(paths=[cut]))
    except BadInput:
        return
    json.dumps(traffic_document(found), allow_nan=False)
    assert traffic_blocks(found)[0][0] == "Read"
    if isinstance(found, Workload):
        figures = [chart.figure for chart in traffic_page(found, found).charts if isinstance(chart, Chart)]
        json.dumps(figures, allow_nan=False)


def test_a_page_of_endless_and_few_metrics_is_described(run, tmp_path):
    (tmp_path / "a.prom").write_text("vllm:num_requests_running +Inf\nvllm:num_requests_waiting 2\n")
    assert document(run, "a.prom")["gauges"] == {"running_count": None, "waiting_count": 2}
    (tmp_path / "b.prom").write_text('vllm:e2e_request_latency_seconds_bucket{le="1"} 3\n')
    assert run("profile", "b.prom")[0] == 0


def test_a_prometheus_server_is_asked_in_place_of_files(run, monkeypatch):
    asked = []

    def answer(url, _timeout_s):
        asked.append({key: value for key, (value, *_) in parse_qs(urlsplit(url).query).items()})
        start, end = float(asked[-1]["start"]), float(asked[-1]["end"])
        rates = {"request_success": 2, "prompt_tokens": 1400, "generation_tokens": 500}
        stamps = [start + 60 * place for place in range(int((end - start) // 60) + 1)]
        series = [
            {
                "metric": {"__name__": f"vllm:{name}_total"},
                "values": [[stamp, str((stamp - start) * rate)] for stamp in stamps],
            }
            for name, rate in rates.items()
        ]
        return json.dumps({"status": "success", "data": {"result": series}}).encode()

    monkeypatch.setattr(prometheus.traffic, "__kwdefaults__", {**prometheus.traffic.__kwdefaults__, "opener": answer})
    found = document(run, "http://prometheus:9090", "--last", "2h", "--labels", 'namespace="prod"')
    assert float(asked[0]["end"]) - float(asked[0]["start"]) == pytest.approx(7200)
    assert 'namespace="prod"' in asked[0]["query"]
    assert found["kind"] == "minute aggregates"
    assert found["mean_rate_per_s"] == pytest.approx(2)
    assert found["input_tokens"]["mean"] == pytest.approx(700)
    assert found["peak_to_mean_minute_requests"] == pytest.approx(1)
    code, _, err = run("profile", "http://prometheus:9090", "--engine", "vlm", "--last", "soon")
    assert code == 2
    assert "--last: " in err
    assert run("profile", "http://prometheus:9090", LOGS / "helicone_requests.jsonl")[0] == 2
    assert "--engine: " in run("profile", "http://prometheus:9090", "--engine", "vlm")[2]


def test_a_server_that_does_not_answer_is_told_from_bad_input(run):
    code, out, err = run("profile", "http://127.0.0.1:9", "--quiet")
    assert (code, out) == (3, "")
    assert "did not answer" in err
