"""What a plan made again says of the answer before it."""

import dataclasses

from tokenfleet.app.changed_words import NOTHING, changed


def with_chosen(plan, **changes):
    return dataclasses.replace(plan, chosen=dataclasses.replace(plan.chosen, **changes))


def test_the_same_answer_changed_nothing(plan):
    later = dataclasses.replace(plan, warnings=(), assumptions=("read again",), replayed_count=7)
    assert changed(plan, later) == [NOTHING]


def test_another_number_of_replicas_costs_more(plan):
    more = with_chosen(plan, spare_count=plan.chosen.spare_count + 1)
    fleet, price = changed(plan, more)
    assert fleet == "6 replicas of 2 x h100_sxm (TP2, fp8), was 5 replicas of 2 x h100_sxm (TP2, fp8)"
    assert price == "$35.40/h, was $29.50/h (+20%)"
    assert changed(more, plan)[1] == "$29.50/h, was $35.40/h (-17%)"


def test_other_settings_figures_and_limits_are_told_one_by_one(plan):
    deployment = plan.chosen.replica.deployment
    engine = dataclasses.replace(deployment.engine, max_batched_tokens=512)
    replica = dataclasses.replace(plan.chosen.replica, deployment=dataclasses.replace(deployment, engine=engine))
    first, *others = plan.slo_degraded
    later = dataclasses.replace(
        with_chosen(plan, replica=replica),
        slo_degraded=(dataclasses.replace(first, predicted=first.predicted / 2), *others),
        limits=plan.limits[1:],
    )
    settings, promise, binds = changed(plan, later)
    assert settings.startswith("runs: ")
    assert "max_batched_tokens 512" in settings.partition(", was ")[0]
    assert promise == "TTFT p99: 0.35 s of 2.00 s kept, was 0.71 s of 2.00 s kept"
    assert binds == "binds: KV memory at 41 requests/s, was decode bandwidth at 27 requests/s"


def test_a_clause_may_come_and_go(plan):
    fewer = dataclasses.replace(plan, slo_degraded=plan.slo_degraded[1:])
    assert changed(fewer, plan) == ["TTFT p99: 0.71 s of 2.00 s kept, new"]
    assert changed(plan, fewer) == ["TTFT p99: gone, was 0.71 s of 2.00 s kept"]


def test_a_fleet_may_come_and_go(plan, infeasible):
    assert changed(plan, infeasible) == [f"no fleet keeps the promise any more: {infeasible.reasons[0].text}"]
    assert changed(infeasible, plan) == ["a fleet keeps the promise, before none did"]
    assert changed(infeasible, infeasible) == [NOTHING]
    other = dataclasses.replace(infeasible.reasons[0], text="Memory is short.")
    later = dataclasses.replace(infeasible, reasons=(other, *infeasible.reasons[1:]))
    assert changed(infeasible, later) == [f"Memory is short., was {infeasible.reasons[0].text}"]
