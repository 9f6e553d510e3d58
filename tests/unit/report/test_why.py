"""Latencies beside other candidates are those judged while sizing, and the choice may differ on all of the demand."""

import dataclasses

from tokenfleet.app.report.why import explain


def test_latencies_of_sizing_and_of_the_whole_demand_are_told_apart(plan):
    (slo_ttft, *others) = plan.slo_degraded
    as_sized = dataclasses.replace(slo_ttft, predicted=0.968)
    chosen = dataclasses.replace(plan.chosen, slo=(as_sized, *others))
    table = explain(dataclasses.replace(plan, chosen=chosen), 20.0).others
    assert table.caption.startswith(
        "Latencies of the peak, the spare gone, as judged while sizing, on the busiest stretch"
    )
    assert "On all of it the choice has TTFT p99 0.71\xa0s" in table.caption
    assert "ITL" not in table.caption
    assert table.rows[0][6].startswith("0.968")


def test_where_both_are_the_same_there_is_nothing_to_tell_apart(plan):
    chosen = dataclasses.replace(plan.chosen, slo=plan.slo_degraded)
    table = explain(dataclasses.replace(plan, chosen=chosen), 20.0).others
    assert table.caption == "Latencies of the peak, the spare gone, as judged while sizing"
