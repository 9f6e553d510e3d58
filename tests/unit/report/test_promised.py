"""What is odd about a peak is said: a clause that falls on nobody in it, fewer requests than on average."""

from dataclasses import replace

from tokenfleet.app.report.decision import decide, predicted
from tokenfleet.app.summary import promised
from tokenfleet.planner.document import plan_document


def test_a_clause_without_a_request_in_the_peak_shows_what_decided(plan, workload, resolved):
    first, *others = plan.slo_degraded
    nobody = replace(
        first,
        predicted=None,
        predicted_low=None,
        predicted_high=None,
        sample_count=0,
        kept=False,
        traffic_class="night",
    )
    asked = replace(plan, slo_degraded=(nobody, *others), slo_degraded_overall=(first, *others))
    line = promised(asked)[1]
    assert line.endswith("kept; over the whole trace, nobody of it arrives in the peak")
    assert promised(asked)[2] == promised(plan)[2]
    document = plan_document(asked, workload, resolved)
    assert [each["kept"] for each in document["slo"]] == [None, *(result.kept for result in others)]
    spare = next(case for case in document["redundancy"] if "spare gone" in case["scenario"])
    assert spare["kept"] is True
    assert spare["slo_peak"][0]["kept"] is None
    assert spare["slo_overall"][0]["kept"] is True


def test_a_value_that_never_came_is_no_want_of_samples(plan):
    first, *others = plan.slo_degraded
    never = replace(first, predicted=None, predicted_low=None, predicted_high=None, kept=False)
    assert predicted(never) == "never: too few requests got an answer"
    nobody = replace(never, name="ttft_p99", sample_count=0)
    assert predicted(nobody) == "cannot be said from 0 samples: 100 requests would tell"
    assert predicted(replace(nobody, name="itl_p95")).endswith("20 token gaps would tell")
    line = promised(replace(plan, slo_degraded=(never, *others)))[1]
    assert "never" in line
    assert line.endswith("broken")


def test_a_peak_of_fewer_and_longer_requests_is_explained(plan, workload):
    def note(rate_per_s):
        facts = decide(replace(plan, peak_rate_per_s=rate_per_s), workload).facts
        return next(fact.note for fact in facts if fact.name == "Peak demand")

    mean = workload.mean_rate_per_s
    assert note(0.9 * mean).startswith("in the minute with most tokens, of longer requests; mean ")
    assert note(1.1 * mean).startswith("mean ")
