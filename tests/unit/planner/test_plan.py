from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.plan import Reason, Rejected
from tokenfleet.domain.slo import SloResult
from tokenfleet.domain.trace import Trace
from tokenfleet.planner import UNSEEN, Latencies, Verdict, cheapest, plan, plan_document
from tokenfleet.planner import answer as answer_module
from tokenfleet.planner.candidates import Candidate, Failure
from tokenfleet.planner.outdone import Outdone
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.quotes import quote
from tokenfleet.planner.replays import Replays
from tokenfleet.planner.screen import screen
from tokenfleet.planner.search import Search
from tokenfleet.planner.traffic import Traffic
from tokenfleet.workload import profile
from unit.planner import toy

pytestmark = pytest.mark.usefixtures("toy_world")

PRICES = [toy.price("h100_sxm", 3.0), toy.price("a100_sxm_80gb", 1.5)]
CANDIDATES = [toy.replica(slots=16), toy.replica(gpu="a100_sxm_80gb", slots=8, step_ms=15.0)]


def test_the_answer_is_a_border_and_the_spare_comes_on_top():
    trace = toy.trace(count=600, rate=40.0)
    made = plan(toy.question(CANDIDATES[:1], PRICES), trace)
    count = made.chosen.carrying_count
    assert count > 1
    assert made.chosen.replica_count == count + 1
    assert made.degraded.replica_count == count
    assert made.record.replica_count == count + 1
    assert all(result.kept for result in (*made.slo_degraded, *made.slo_whole, *made.slo_degraded_overall))
    fewer = toy.question([CANDIDATES[0]], PRICES, spare=0)
    assert plan(fewer, trace).chosen.carrying_count == count


def test_every_clause_has_a_range_that_holds_it():
    made = plan(toy.question(CANDIDATES, PRICES), toy.trace(rate=40.0))
    for result in (*made.slo_degraded, *made.slo_whole):
        assert result.predicted_low <= result.predicted <= result.predicted_high


def test_the_cheaper_wins_and_the_other_is_named():
    made = plan(toy.question(CANDIDATES, PRICES), toy.trace(count=600, rate=40.0))
    others = [sized.price_usd_per_hour for sized in made.runners_up]
    assert made.chosen.price_usd_per_hour <= min(others)
    assert others == sorted(others)


def test_a_gpu_without_a_price_is_out_and_never_free():
    made = plan(toy.question(CANDIDATES, PRICES[:1]), toy.trace(rate=20.0))
    assert made.chosen.replica.deployment.gpu == "h100_sxm"
    (out,) = made.rejected
    assert (out.gpu, out.reasons[0].kind) == ("a100_sxm_80gb", "price_missing")
    nobody = plan(toy.question(CANDIDATES, []), toy.trace(rate=20.0))
    assert nobody.chosen is None
    assert {reason.kind for reason in nobody.reasons} == {"price_missing"}


def test_equal_prices_go_to_fewer_gpus():
    wide = toy.replica(tensor_parallel=2, slots=16, gpu="a100_sxm_80gb")
    made = plan(toy.question([wide, toy.replica(slots=16)], PRICES), toy.trace(rate=40.0))
    assert made.chosen.gpu_count == made.runners_up[0].gpu_count / 2
    assert made.chosen.price_usd_per_hour == made.runners_up[0].price_usd_per_hour


def test_infeasible_names_the_floor_and_a_change_that_works():
    question = toy.question(CANDIDATES, PRICES, promise=toy.slo(ttft=0.015))
    made = plan(question, toy.trace())
    assert made.chosen is None
    assert made.record is None
    assert made.reasons[0].kind == "ttft_floor"
    assert "Prefill of the p99 input" in made.reasons[0].text
    limit = float(made.reasons[0].relax.split("ttft_p99 >= ")[1].split(" ")[0])
    cap = int(made.reasons[0].relax.split("cap input at ")[1].split(" ")[0])
    relaxed = toy.slo(ttft=limit)
    assert plan(replace(question, slo=relaxed), toy.trace()).chosen is not None
    trace = toy.trace()

    def capped_at(tokens: int):
        return replace(trace, input_tokens=np.minimum(trace.input_tokens, tokens).astype(np.int32))

    assert plan(question, capped_at(cap)).chosen is not None
    smaller = replace(question, slo=toy.slo(ttft=limit / 1.05))
    assert plan(smaller, trace).chosen is None, "a promise nearer to the one asked for would do"
    assert plan(question, capped_at(round(cap * 1.06))).chosen is None, "longer prompts would do"


def test_a_relaxation_is_enough_for_the_whole_demand(monkeypatch):
    monkeypatch.setattr(answer_module, "SEARCH_REQUESTS", 300)
    busy, rest = toy.trace(count=300, rate=40.0), toy.trace(count=900, rate=20.0, seed=2)
    later = busy.arrival_s[-1] + 30.0 + rest.arrival_s
    # The longest prompts come outside of the busiest stretch, one request in a hundred of all.
    long = np.where(np.arange(900) % 60 == 0, 1500, rest.input_tokens)
    trace = Trace(
        arrival_s=np.concatenate([busy.arrival_s, later]),
        input_tokens=np.concatenate([busy.input_tokens, long]).astype(np.int32),
        output_tokens=np.concatenate([busy.output_tokens, rest.output_tokens]).astype(np.int32),
    )
    question = toy.question(CANDIDATES[:1], PRICES, promise=toy.slo(ttft=0.015))
    made = plan(question, trace)
    assert made.chosen is None
    looser = made.reasons[0].relax.split("   or   ")[0]
    limit = float(looser.split("ttft_p99 >= ")[1].split(" ")[0])
    bought = plan(replace(question, slo=toy.slo(ttft=limit)), trace).chosen
    assert f"({bought.replica_count} replica" in looser
    assert plan(replace(question, slo=toy.slo(ttft=limit / 1.05)), trace).chosen is None


def test_what_a_rejected_candidate_lacks_is_what_it_lacks():
    question = toy.question(CANDIDATES, PRICES, promise=toy.slo(ttft=0.015))
    made = plan_document(plan(question, toy.trace()), profile(toy.trace()), {})
    assert [each["gpu"] for each in made["rejected"]] == ["h100_sxm", "a100_sxm_80gb"]
    for each, candidate in zip(made["rejected"], CANDIDATES, strict=True):
        (reason,) = each["reasons"]
        number, unit = reason["relax"].removeprefix("ttft_p99 >= ").removesuffix(", more under load").split(" ")
        floor = float(number) * {"s": 1.0, "ms": 1e-3}[unit]
        below = replace(question, candidates=(candidate,), slo=toy.slo(ttft=floor / 1.02))
        kinds = {found.kind for out in plan(below, toy.trace()).rejected for found in out.reasons}
        assert kinds == {"ttft_floor"}
        above = replace(below, slo=toy.slo(ttft=floor * 1.02))
        kinds = {found.kind for out in plan(above, toy.trace()).rejected for found in out.reasons}
        assert "ttft_floor" not in kinds


def test_the_fleet_named_with_a_change_is_the_smallest_that_works():
    question = toy.question(CANDIDATES[:1], PRICES, promise=toy.slo(ttft=0.015))
    trace = toy.trace(count=600, rate=40.0)
    (reason,) = plan(question, trace).reasons
    change = reason.relax.split("   or   ")[0]
    limit = float(change.split("ttft_p99 >= ")[1].split(" ")[0])
    named = int(change.split("(")[1].split(" ")[0])
    relaxed = plan(replace(question, slo=toy.slo(ttft=limit)), trace)
    assert named == relaxed.chosen.replica_count


def test_a_floor_is_told_of_the_fastest_candidate_and_each_is_rejected_by_its_own():
    made = plan(toy.question(CANDIDATES, PRICES, promise=toy.slo(ttft=0.015)), toy.trace())
    assert "on the fastest candidate (1 x h100_sxm, bf16)." in made.reasons[0].text
    assert all("fastest" not in reason.text for each in made.rejected for reason in each.reasons)


def test_of_a_handful_of_requests_no_chance_is_told():
    few = plan(toy.question(CANDIDATES[:1], PRICES), toy.trace(count=60, rate=5.0))
    assert few.chosen is not None
    assert few.confidence is None
    assert [each.kind for each in few.warnings] == ["no_samples"]
    enough = plan(toy.question(CANDIDATES[:1], PRICES), toy.trace(count=100, rate=5.0))
    assert enough.confidence is not None
    assert enough.warnings == ()


def test_infeasible_before_the_planner_was_asked_keeps_its_reasons():
    out = Rejected(
        gpu="l4",
        precision="bf16",
        tensor_parallel=1,
        reasons=(Reason(kind="memory", text="Weights need 140 GiB of 22 GiB.", relax="4 x h100_sxm"),),
    )
    made = plan(toy.question([], PRICES, rejected=[out]), toy.trace())
    assert made.chosen is None
    assert made.reasons == out.reasons
    assert made.replayed_count == 0


def test_a_promise_kept_by_none_at_any_count_says_what_happens_there():
    slow = toy.replica(slots=4, step_ms=10.0, token_us=100.0)
    # Alone a step takes 10 ms, but the four it is made for take 10.3 ms.
    made = plan(toy.question([slow], PRICES, promise=toy.slo(itl=0.0101)), toy.trace())
    assert made.chosen is None
    assert made.reasons[0].kind == "capacity"
    assert "itl_p99" in made.reasons[0].text
    assert "itl_p99 >= " in made.reasons[0].relax


def test_limits_name_what_stops_the_queue():
    # The toy's replicas stop at their slots and at nothing else.
    made = plan(toy.question(CANDIDATES[1:], PRICES), toy.trace(count=600, rate=40.0))
    first, second = made.limits[:2]
    assert first.limit == "sequence_slots"
    assert first.rate_at_limit_per_s == pytest.approx(made.sustained_rate_per_s)
    assert made.found_within_fraction == pytest.approx(0.03)
    assert first.rate_at_limit_per_s >= made.peak_rate_per_s
    assert second.rate_at_limit_per_s > first.rate_at_limit_per_s
    assert len({use.limit for use in made.limits}) == len(made.limits) == 5


def test_the_curve_rises_with_load_and_breaks_somewhere():
    made = plan(toy.question(CANDIDATES[1:], PRICES), toy.trace(count=600, rate=40.0))
    ttft = [point.ttft_p99_s for point in made.curve]
    assert ttft[-1] > 2 * ttft[0]
    assert made.curve[0].kept
    assert made.curve[-1].rate_per_s == pytest.approx(1.5 * made.peak_rate_per_s)


def test_the_frontier_has_the_chosen_fleet_and_only_undominated_points_are_efficient():
    made = plan(toy.question(CANDIDATES, PRICES), toy.trace(count=600, rate=40.0))
    cheapest = made.frontier[0]
    assert cheapest.price_usd_per_hour == made.chosen.price_usd_per_hour
    assert cheapest.efficient
    for point in made.frontier:
        better = [
            other
            for other in made.frontier
            if other.price_usd_per_hour < point.price_usd_per_hour
            and other.ttft_p99_s <= point.ttft_p99_s
            and other.itl_p99_s <= point.itl_p99_s
        ]
        if better:
            assert not point.efficient


def test_a_long_trace_is_searched_on_its_peak_and_proved_whole(monkeypatch):
    monkeypatch.setattr(answer_module, "SEARCH_REQUESTS", 300)
    monkeypatch.setattr(answer_module, "DETAIL_REQUESTS", 200)
    trace = toy.trace(count=2000, rate=40.0)
    made = plan(toy.question(CANDIDATES, PRICES), trace)
    assert len(made.degraded.arrival_s) == 2000
    assert all(result.kept for result in (*made.slo_degraded, *made.slo_degraded_overall))
    assert any("busiest stretch" in line for line in made.assumptions)
    # The fleet alone is told with what it does on the whole trace, too, not on the stretch it was found on.
    alone = cheapest(toy.question(CANDIDATES, PRICES), trace).sized
    assert [each.predicted for each in alone.slo] == [each.predicted for each in made.slo_degraded]
    assert [each.predicted for each in alone.slo] != [each.predicted for each in made.chosen.slo]


def test_progress_never_falls_and_ends_whole():
    steps = []
    plan(toy.question(CANDIDATES, PRICES), toy.trace(rate=40.0), progress=steps.append)
    fractions = [step.done_fraction for step in steps]
    assert fractions == sorted(fractions)
    assert fractions[-1] == 1.0
    assert {"floors", "sizing", "verifying", "limits", "curve"} <= {step.phase for step in steps}
    assert "a100" in steps[-1].best


def test_the_same_question_has_the_same_answer():
    question, trace = toy.question(CANDIDATES, PRICES), toy.trace(rate=40.0)
    first, second = plan(question, trace), plan(question, trace)
    assert first.chosen == second.chosen
    assert first.limits == second.limits
    assert first.frontier == second.frontier
    assert first.replayed_count == second.replayed_count


def test_an_empty_trace_or_an_unknown_router_is_bad_input():
    nothing = toy.trace(count=1)
    empty = replace(
        nothing,
        arrival_s=nothing.arrival_s[:0],
        input_tokens=nothing.input_tokens[:0],
        output_tokens=nothing.output_tokens[:0],
    )
    with pytest.raises(BadInput, match="no requests"):
        plan(toy.question(CANDIDATES, PRICES), empty)
    with pytest.raises(BadInput, match="least_in_flight"):
        plan(replace(toy.question(CANDIDATES, PRICES), router="randomly"), nothing)


def test_hopelessly_dear_candidates_are_not_sized():
    dear = toy.replica(slots=16, tensor_parallel=8)
    made = plan(toy.question([*CANDIDATES, dear], PRICES), toy.trace(rate=40.0))
    (out,) = made.outpriced
    assert out.replica is dear
    assert out.failed_count == 0
    assert out.broken == ()


def test_being_sure_of_the_promise_has_its_price():
    trace = toy.trace(count=600, rate=40.0)
    made = plan(toy.question(CANDIDATES, PRICES), trace)
    assert made.sure.replica == made.chosen.replica
    slow = replace(made.sure.replica, step_time=toy.scaled(made.sure.replica.step_time, 1.2))
    alone = plan(toy.question([slow], PRICES), trace)
    assert alone.chosen.carrying_count == made.sure.carrying_count >= made.chosen.carrying_count
    assert any("1.2 times as long" in line for line in made.assumptions)


def clause(predicted, sample_count=100):
    return SloResult(
        name="ttft_p99",
        unit="s",
        promised=1.0,
        predicted=predicted,
        predicted_low=None,
        predicted_high=None,
        sample_count=sample_count,
        kept=predicted is not None and predicted <= 1.0,
    )


@pytest.mark.parametrize("estimate", [2, 50])
@pytest.mark.parametrize(("missed_by", "found"), [(1.02, 4), (1.1, None)])
def test_below_a_ceiling_fewer_replicas_may_keep_what_the_most_break_by_a_hair(monkeypatch, missed_by, found, estimate):
    def judged(_candidate, count, _whole=None):
        result = clause(2.0 if count < 4 else 0.9 if count < 7 else missed_by)
        return Verdict((result,), (result,), UNSEEN)

    asked, traffic, silent = toy.question(CANDIDATES[:1], PRICES[:1]), Traffic(toy.trace(), (0.0, 40.0)), Reporter(None)
    screened = screen(asked, traffic, (), silent)
    search = Search(Replays(asked.slo, "least_in_flight"), traffic, asked, silent, ceiling_usd_per_hour=9 * 3.0)
    monkeypatch.setattr(search, "replay", judged)
    answers = search.over([replace(one, estimate=estimate) for one in screened.candidates]).answers
    assert [one.sized.carrying_count for one in answers] == ([] if found is None else [found])


@pytest.mark.parametrize(
    ("peak", "overall", "excess"),
    [(0.9, 0.8, 1.0), (1.01, 0.8, 1.01), (0.9, 1.5, 1.5), (1.01, 1.5, 1.5), (2.0, 1.5, 2.0), (1.01, None, np.inf)],
)
def test_a_promise_is_missed_by_what_it_is_missed_by_most(peak, overall, excess):
    """A look on the way may see one of the two alone: what it has seen must not be less in the end."""
    assert Verdict((clause(peak),), (clause(overall),), UNSEEN).excess == excess


def test_where_nobody_arrives_in_the_peak_all_requests_decide():
    assert Verdict((clause(None, 0),), (clause(0.9),), UNSEEN).kept
    assert Verdict((clause(None, 0),), (clause(1.2),), UNSEEN).excess == 1.2


def test_of_two_steps_at_one_price_the_sure_one_is_bought():
    unsure, sure = toy.replica(budget=1024, band=3.0), toy.replica(budget=2048, band=1.05)
    asked = toy.question([unsure, sure], PRICES, promise=toy.slo(ttft=0.05))
    trace = toy.trace(count=600, rate=40.0)
    made, first = plan(asked, trace), cheapest(asked, trace).sized
    assert first.replica.deployment.engine.max_batched_tokens == 1024
    assert made.chosen.replica.deployment.engine.max_batched_tokens == 2048
    assert made.chosen.price_usd_per_hour == first.price_usd_per_hour
    assert made.sure.replica == made.chosen.replica
    assert all(result.kept for result in (*made.slo_degraded, *made.slo_degraded_overall))


def test_no_number_is_sure_where_the_slow_end_breaks_a_floor():
    # A step of 8.1 ms keeps 9 ms, and at 1.2 times as long breaks it alone.
    fast = toy.replica(slots=4, step_ms=8.0, token_us=10.0)
    made = plan(toy.question([fast], PRICES, promise=toy.slo(itl=0.009)), toy.trace())
    assert made.chosen is not None
    assert made.sure is None
    assert any("load-test before" in line for line in made.assumptions)


def test_what_slow_steps_take_is_said_where_a_first_token_is_not_sure_of_its_promise():
    trace = toy.trace(count=600, rate=40.0)
    kind = toy.replica(slots=16, tensor_parallel=2)
    vague = replace(kind, band=replace(kind.band, first_token_factor=1e6))
    made, known = (plan(toy.question([each], PRICES), trace) for each in (vague, kind))
    assert (made.sure, known.sure is None) == (None, False)
    slow, same = (
        next(case for case in each.sensitivity if case.assumption == "step time" and case.change.startswith("x"))
        for each in (made, known)
    )
    assert slow.replica_count == same.replica_count == known.sure.replica_count
    said = [line for line in made.assumptions if "times as long" in line]
    assert len(said) == 1
    assert "the promise of a first token may break all the same" in said[0]


def test_a_clock_is_read_twice_and_only_when_given():
    ticks = iter([10.0, 12.5])
    made = plan(toy.question(CANDIDATES, PRICES), toy.trace(rate=40.0), clock=lambda: next(ticks))
    assert made.wall_s == 2.5
    assert made.tried_count == 2
    assert plan(toy.question(CANDIDATES, PRICES), toy.trace(rate=40.0)).wall_s is None


def test_the_cheapest_is_what_a_plan_chooses():
    trace = toy.trace(count=600, rate=40.0)
    question = toy.question(CANDIDATES, PRICES)
    found = cheapest(question, trace)
    made = plan(question, trace)
    assert found.sized == made.chosen
    assert found.replayed_count < made.replayed_count
    nobody = cheapest(replace(question, prices=()), trace)
    assert nobody.sized is None
    planned = plan(replace(question, prices=()), trace)
    assert nobody.reasons == tuple(replace(reason, relax="") for reason in planned.reasons)
    assert nobody.replayed_count < planned.replayed_count


def test_target_utilization_is_what_the_promise_and_the_spare_leave():
    made = plan(toy.question(CANDIDATES[:1], PRICES), toy.trace(count=600, rate=40.0))
    carrying, whole = made.utilization_carrying_fraction, made.utilization_fraction
    assert 0.0 < carrying <= 1.0 + 1e-9
    assert whole == pytest.approx(carrying * made.chosen.carrying_count / made.chosen.replica_count)
    # With one of n replicas spare nobody may aim for more than (n - 1) / n.
    assert whole <= (made.chosen.replica_count - 1) / made.chosen.replica_count + 1e-9
    nobody = plan(toy.question(CANDIDATES, []), toy.trace())
    assert nobody.utilization_fraction is None


def test_a_failure_speaks_only_for_those_that_are_no_better():
    quick, slow = toy.replica(step_ms=10.0), toy.replica(gpu="a100_sxm_80gb", step_ms=20.0)
    more_cache = toy.replica(gpu="l40s", step_ms=20.0, block_count=40_000)
    late = SloResult(
        name="ttft_p99",
        unit="s",
        promised=1.0,
        predicted=2.0,
        predicted_low=None,
        predicted_high=None,
        sample_count=100,
        kept=False,
    )
    verdict = Verdict((late,), (late,), Latencies(None, None, None, None))
    failed = Failure(quick, 40, verdict, ())
    price = quote(tuple(toy.price(gpu, 1.0) for gpu in ("h100_sxm", "a100_sxm_80gb", "l40s")), "h100_sxm")

    def beaten(replica, failure=failed):
        outdone = Outdone()
        outdone.note_failure(Candidate(quick, price, 1), failure)
        return outdone.by_failure(Candidate(replica, price, 1))

    assert "even 40 replicas break the promise: ttft_p99 is 2 s" in beaten(slow).reasons[0].text
    assert beaten(slow).inferred
    assert beaten(more_cache) is None
    assert beaten(toy.replica(gpu="a100_sxm_80gb", step_ms=5.0)) is None
    assert beaten(slow, replace(failed, untried=True)) is None
    uneven = replace(late, name="itl_p99")
    assert beaten(slow, replace(failed, verdict=replace(verdict, peak=(uneven,), overall=(uneven,)))) is None


def test_too_few_of_a_replica_are_too_few_of_those_that_are_no_better():
    def candidate(**how):
        price = quote((toy.price(how.get("gpu", "h100_sxm"), 1.0),), how.get("gpu", "h100_sxm"))
        return Candidate(toy.replica(**how), price, 1)

    def missed(name, predicted):
        return SloResult(
            name=name,
            unit="s",
            promised=1.0,
            predicted=predicted,
            predicted_low=None,
            predicted_high=None,
            sample_count=100,
            kept=False,
        )

    def shown(clauses, other, count=4):
        outdone = Outdone()
        outdone.note_broken(candidate(step_ms=10.0), 4, clauses)
        return outdone.by_count(other, count) is not None

    slow, late = candidate(step_ms=20.0), [missed("ttft_p99", 2.0)]
    assert shown(late, slow)
    assert shown(late, slow, 3)
    assert not shown(late, slow, 5), "more of them might do"
    assert not shown([missed("ttft_p99", 1.02)], slow), "a hair says nothing"
    assert not shown(late, candidate(step_ms=5.0)), "faster"
    assert not shown(late, candidate(step_ms=20.0, block_count=40_000))
    assert not shown(late, candidate(step_ms=20.0, slots=128)), "more slots, less waiting"
    uneven = [missed("itl_p99", 2.0)]
    assert shown(uneven, candidate(step_ms=20.0, slots=128))
    assert not shown(uneven, candidate(step_ms=20.0, slots=2)), "smaller steps, smaller gaps"
    assert not shown([missed("e2e_p99", 2.0)], slow)


def test_the_next_best_is_sized_whatever_it_costs():
    dear = [toy.price("h100_sxm", 3.0), toy.price("a100_sxm_80gb", 40.0), toy.price("l40s", 90.0)]
    candidates = [*CANDIDATES, toy.replica(gpu="l40s", slots=8)]
    question, trace = toy.question(candidates, dear), toy.trace(count=600, rate=40.0)
    made = plan(question, trace)
    assert made.chosen.replica.deployment.gpu == "h100_sxm"
    alone = cheapest(toy.question(CANDIDATES[1:], dear), trace).sized
    assert made.runners_up[0].replica.deployment.gpu == "a100_sxm_80gb"
    assert made.runners_up[0].price_usd_per_hour == alone.price_usd_per_hour > 2.0 * made.chosen.price_usd_per_hour
    # A first look does not ask, and neither does who wants the cheapest alone.
    assert plan(replace(question, first_look=True), trace).runners_up == ()
    nobody = plan(toy.question([CANDIDATES[0], toy.replica(gpu="l40s", slots=4, step_ms=99.0)], dear), trace)
    assert nobody.runners_up == ()
