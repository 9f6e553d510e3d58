"""The page as a whole: what a person finds on it, and what must never be there."""

import dataclasses
import json
import re
from dataclasses import replace
from html.parser import HTMLParser

import numpy as np
import plotly.graph_objects
import pytest

from tokenfleet.app.full_words import utilization_lines
from tokenfleet.app.report import render_report, write_report
from tokenfleet.app.report.charts import Absent, Chart
from tokenfleet.app.report.decision import decide
from tokenfleet.app.report.latency import frontier_charts, load_curves
from tokenfleet.domain.plan import Reason
from tokenfleet.domain.slo import LatencyTarget

COMMAND = "tokenfleet plan chat.yaml -o out"
VOID = {"meta", "link", "br", "hr", "img", "input", "base", "col", "wbr"}


class Page(HTMLParser):
    """What a browser would see: tags with attributes, text outside scripts, and whether all is closed."""

    def __init__(self, text):
        super().__init__(convert_charrefs=True)
        self.tags, self.parts, self.ids, self.scripts, self.open = [], [], [], {}, []
        self.feed(text)
        self.close()

    def handle_starttag(self, tag, attrs):
        attributes = dict(attrs)
        self.tags.append((tag, attributes))
        if "id" in attributes:
            self.ids.append(attributes["id"])
        if tag not in VOID:
            self.open.append((tag, attributes))

    def handle_endtag(self, tag):
        assert self.open, f"</{tag}> closes nothing"
        opened, _ = self.open.pop()
        assert opened == tag

    def handle_data(self, data):
        if self.open and self.open[-1][0] in {"script", "style"}:
            tag, attributes = self.open[-1]
            key = attributes.get("id", tag)
            self.scripts[key] = self.scripts.get(key, "") + data
        else:
            self.parts.append(data)

    @property
    def text(self):
        return re.sub(r"\s+", " ", " ".join(self.parts))

    @property
    def figures(self):
        return json.loads(self.scripts["figures"])


@pytest.fixture(scope="module")
def page(plan, workload, resolved):
    return Page(render_report(plan, workload, resolved, command=COMMAND))


@pytest.fixture(scope="module")
def no_page(infeasible, workload, resolved):
    return Page(render_report(infeasible, workload, resolved, command=COMMAND))


def in_order(text, *pieces):
    places = [text.find(piece) for piece in pieces]
    assert -1 not in places, [piece for piece, place in zip(pieces, places, strict=True) if place < 0]
    assert places == sorted(places)


def test_every_element_is_closed_and_every_id_is_its_own(page, no_page):
    for each in (page, no_page):
        assert not each.open
        assert len(each.ids) == len(set(each.ids))


def test_sections_stand_in_the_order_a_person_decides(page):
    sections = [attributes["id"] for tag, attributes in page.tags if tag == "section"]
    assert sections == ["decision", "why", "demand", "worst-day", "money", "assumptions", "repeat"]


def test_the_first_screen_answers(page):
    in_order(
        page.text,
        "Buy 5 replicas of 2 x h100_sxm (TP2, fp8)",
        "10 GPUs serve meta-llama/Llama-3.3-70B-Instruct for $29.50 an hour ($17.11 to $69.03 by provider)",
        "4 carry the peak alone, so 1 may fail",
        "Promise kept at the peak with 1 replica gone, unsure: the slow end of the range breaks it",
        "TTFT p99 ≤ 2 s 0.52 s (0.33–0.81) 0.71 s (0.45–1.1) kept",
        "ITL p99 ≤ 50 ms 33 ms (26–46) 38 ms (30–53) kept",
    )


def test_why_names_what_binds_and_who_lost(page):
    in_order(
        page.text,
        "Decode bandwidth binds first, at 27 requests/s with the spare gone; next is KV memory, at 41 requests/s.",
        "75.6 %",
        "at least 66 requests/s",
        "Runner-up: 5 replicas of 2 x h200_sxm (TP2, fp8), $41.20/h. "
        "It keeps the promise too, and lost on price: $11.70/h more (39.7 %).",
        "6 replicas, and then ITL p99 is broken",
        "Weights need 131 GiB of 79.6 GiB on each GPU.",
    )


def test_of_many_limits_those_that_no_load_reached_are_folded(plan, workload, resolved):
    reached, next_one, far = plan.limits
    many = [dataclasses.replace(far, pool=f"pool {number}") for number in range(9)]
    late = dataclasses.replace(next_one, pool="late")
    made = dataclasses.replace(plan, limits=(reached, next_one, *many[:4], late, *many[4:]))
    page = Page(render_report(made, workload, resolved, command=COMMAND))
    in_order(page.text, "late: KV memory", "9 limits further away than any load tried", "pool 0: ", "pool 8: ")
    assert "further away than any load tried" not in Page(render_report(plan, workload, resolved, command=COMMAND)).text


def test_a_runner_up_of_the_same_price_says_what_decided(plan, workload, resolved):
    alike = dataclasses.replace(plan, runners_up=(plan.chosen,))
    text = Page(render_report(alike, workload, resolved, command=COMMAND)).text
    in_order(text, "It keeps the promise too, and lost at the same price and gpus; the plan keeps more margin.")


def test_the_bill_adds_up_as_shown(page):
    section = page.text[page.text.index("One hour of the fleet") :]
    shown = [float(each) for each in re.findall(r"\$(\d+\.\d\d)\b", section)[:7]]
    assert sum(shown[:6]) == pytest.approx(shown[6], abs=1e-9)
    assert shown[6] == 29.50
    in_order(section, "Headroom", "Idle", "Spare", "Per million cached tokens nothing came from the cache", "$0.00041")


def test_it_can_be_repeated(page):
    in_order(page.text, COMMAND, "versions.tokenfleet", "0.1.0", "ab" * 32, "2026-10-01, 2026-11-02", "growth: unset")


def test_nothing_is_fetched(page, no_page):
    for each in (page, no_page):
        for tag, attributes in each.tags:
            assert tag not in {"link", "img", "iframe", "object", "embed", "base", "video", "audio", "source", "a"}
            assert "src" not in attributes
            assert "srcset" not in attributes
        policy = next(a["content"] for t, a in each.tags if a.get("http-equiv") == "Content-Security-Policy")
        assert policy.startswith("default-src 'none'")
        assert "http" not in policy
        ours = each.scripts["style"] + each.scripts["script"]
        assert not re.search(r"https?:|//[a-z]|@import|url\(|fetch\(|XMLHttpRequest|import\(", ours)
        assert "http" not in each.scripts["figures"]


def test_names_from_people_cannot_run(plan, workload, resolved):
    evil = "<script>alert(1)</script>\"'><img src=x onerror=alert(2)>"
    hostile = dataclasses.replace(
        plan,
        question=dataclasses.replace(
            plan.question, name=evil, model=dataclasses.replace(plan.question.model, name=evil, notes=(evil,))
        ),
        frontier=tuple(dataclasses.replace(point, gpu=evil) for point in plan.frontier),
        assumptions=(evil,),
    )
    crowd = dataclasses.replace(
        workload,
        tenant_request_counts={evil: 5},
        quality=dataclasses.replace(workload.quality, warnings=(evil,), rows_dropped={evil: 2}, detected={evil: evil}),
    )
    page = Page(render_report(hostile, crowd, {**resolved, "scenario": {evil: evil}, evil: evil}, command=evil))
    assert evil in page.text
    assert [attributes for tag, attributes in page.tags if tag == "img"] == []
    assert sum(tag == "script" for tag, _ in page.tags) == 3
    assert not any(name.startswith("on") for _, attributes in page.tags for name in attributes)
    hover = page.figures["frontier-ttft"]["data"][1]["text"][0]
    assert "<script" not in hover
    assert "&lt;script" in hover


def test_figures_are_what_plotly_knows(page):
    def painted(value):
        if isinstance(value, str) and value.startswith("var("):
            assert f"{value[4:-1]}:" in page.scripts["style"], "the style sheet knows the colour"
            return "#123456"
        if isinstance(value, list):
            return [painted(each) for each in value]
        if isinstance(value, dict):
            return {key: painted(each) for key, each in value.items()}
        return value

    assert len(page.figures) == 12
    for key, figure in page.figures.items():
        drawn = plotly.graph_objects.Figure(painted(figure))
        assert key in page.ids
        for name in ("xaxis", "yaxis"):
            assert drawn.layout[name].title.text, f"{key}: the {name} says what it is"


def test_load_curves_hold_the_promise_and_the_peak(page):
    figure = page.figures["load-ttft"]
    texts = [each["text"].replace("\u00a0", " ") for each in figure["layout"]["annotations"]]
    assert texts == ["promise TTFT p99 2 s", "planned peak"]
    assert figure["layout"]["shapes"][0]["y0"] == 2.0
    assert figure["layout"]["shapes"][1]["x0"] == pytest.approx(20.4)
    tail = figure["data"][1]
    assert tail["y"][0] is None
    assert tail["marker"]["symbol"] == ["circle"] * 4 + ["x"] * 2


def test_charts_draw_the_quantiles_that_are_promised(plan):
    """A p95 is held against no p99, and a promise of TPOT has its charts."""
    targets = (
        LatencyTarget(metric="ttft", quantile=0.99, limit_s=2.0),
        LatencyTarget(metric="tpot", quantile=0.95, limit_s=0.05),
    )
    asked = replace(plan, question=replace(plan.question, slo=replace(plan.question.slo, latency=targets)))
    drawn = {chart.key: [line["name"] for line in chart.figure["data"]] for chart in load_curves(asked)}
    assert drawn == {"load-ttft": ["median", "p99"], "load-itl": ["median", "p99"], "load-tpot": ["p95"]}
    assert [chart.title for chart in frontier_charts(asked)] == [
        "Cost against TTFT p99",
        "Cost against ITL p99",
        "Cost against TPOT p95",
    ]
    late = LatencyTarget(metric="ttft", quantile=0.95, limit_s=2.0)
    other = replace(asked, question=replace(asked.question, slo=replace(asked.question.slo, latency=(late,))))
    assert isinstance(load_curves(replace(other, curve=other.curve))[0], Chart)
    assert isinstance(frontier_charts(other)[0], Absent), "no fleet was judged by it"


def test_infeasible_says_what_to_change_and_shows_no_money(no_page):
    sections = [attributes["id"] for tag, attributes in no_page.tags if tag == "section"]
    assert sections == ["decision", "demand", "assumptions", "repeat"]
    in_order(
        no_page.text,
        "No fleet keeps this promise",
        "The smallest change that works",
        "ttft_p99 at least 0.62 s",
        "cap input at 1,400 tokens",
        "Prefill of the p99 input (7,303 tokens) alone takes 412 ms",
        "The demand",
    )
    assert "$" not in no_page.text.replace("$ ", "")


def test_a_quota_is_not_any_number_of_replicas(infeasible, workload):
    assert decide(infeasible, workload).sentence.endswith("with any number of replicas.")
    full = Reason(kind="redundancy", text="The quota of 6 GPUs holds no more.", relax="gpu_quota: 12")
    room = dataclasses.replace(infeasible.question.redundancy, gpu_quota_count=6)
    question = dataclasses.replace(infeasible.question, redundancy=room)
    bounded = dataclasses.replace(infeasible, question=question, reasons=(full, *infeasible.reasons))
    assert decide(bounded, workload).sentence.endswith("with as many replicas as there are GPUs for.")


def test_missing_says_why(plan, workload, resolved):
    bare = dataclasses.replace(
        plan,
        record=dataclasses.replace(plan.record, telemetry=None),
        degraded=dataclasses.replace(
            plan.degraded,
            telemetry=None,
            first_token_s=np.full_like(plan.degraded.first_token_s, np.nan),
        ),
        slo_degraded=tuple(
            dataclasses.replace(
                each, predicted=None, predicted_low=None, predicted_high=None, sample_count=0, kept=False
            )
            for each in plan.slo_degraded
        ),
        runners_up=(),
        curve=(),
        frontier=(),
        limits=(),
        bill=None,
        assumptions=(),
    )
    quiet = dataclasses.replace(
        workload,
        interarrival_cv=float("nan"),
        joint_counts=np.zeros_like(workload.joint_counts),
        minute_requests=workload.minute_requests[:1],
        tenant_request_counts={},
    )
    page = Page(render_report(bare, quiet, resolved, command=COMMAND))
    assert page.figures == {}
    in_order(
        page.text,
        "as far as the traffic can show",
        "cannot be said from 0 samples",
        "No limit was found at the loads tried.",
        "There is no runner-up",
        "unknown: fewer than two gaps",
        "unknown: none named in the source",
        "The traffic lasts less than two minutes.",
        "The replay sampled no gauges.",
        "No request reached its first token.",
        "The plan states no assumption.",
    )


def test_no_raw_values_reach_a_person(page, no_page):
    for each in (page, no_page):
        assert not re.search(r"\b(None|NaN|nan|inf|array\(|dtype|Undefined)\b", each.text)
        assert "NaN" not in each.scripts["figures"]


def test_without_a_spare_it_does_not_speak_of_one(plan, workload, resolved):
    chosen = dataclasses.replace(plan.chosen, spare_count=0)
    alone = dataclasses.replace(plan, chosen=chosen, degraded=plan.record)
    text = Page(render_report(alone, workload, resolved, command=COMMAND)).text
    assert "all of them are needed at the peak, so none may fail" in text
    assert "no replica to spare, so the whole fleet" in text
    assert "Predicted, spare gone" not in text


def test_a_week_stays_small_and_keeps_its_peak(plan, workload, resolved):
    minutes = np.full(7 * 1440, 100)
    minutes[5000] = 9999
    week = dataclasses.replace(
        workload, minute_requests=minutes, minute_input_tokens=minutes * 700, minute_output_tokens=minutes * 150
    )
    text = render_report(plan, week, resolved, command=COMMAND)
    page = Page(text)
    assert len(text) < 3_000_000
    series = page.figures["requests-per-minute"]["data"][0]["y"]
    assert len(series) <= 1440
    assert max(series) == 9999
    assert "Each point joins 7 minutes: the highest of them is drawn" in page.text
    assert (
        page.figures["requests-per-minute"]["layout"]["xaxis"]["title"]["text"] == "days since the start of the trace"
    )


def test_equal_plans_give_equal_bytes_and_whole_files(plan, workload, resolved, tmp_path):
    path = tmp_path / "report.html"
    path.write_text("older")
    write_report(plan, workload, resolved, path, command=COMMAND)
    assert path.read_text(encoding="utf-8") == render_report(plan, workload, resolved, command=COMMAND)
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_a_failed_write_leaves_the_older_report(plan, workload, resolved, tmp_path):
    path = tmp_path / "report.html"
    path.mkdir()
    with pytest.raises(IsADirectoryError):
        write_report(plan, workload, resolved, path, command=COMMAND)
    assert [each.name for each in tmp_path.iterdir()] == ["report.html"]


def test_how_full_it_is_says_which_peak(plan):
    minute = replace(plan, peak_start_s=60.0, peak_end_s=120.0)
    assert utilization_lines(minute)[0].startswith("the peak is ")
    longer = utilization_lines(replace(minute, peak_end_s=180.0))[0]
    assert longer.startswith(f"the peak, {plan.peak_rate_per_s:.3g} requests/s over 2 min, is ")
    fuller = replace(minute, mean_rate_per_s=plan.peak_rate_per_s * 1.1)
    assert utilization_lines(fuller)[0].endswith("(the peak is that of tokens, and has fewer requests)")
