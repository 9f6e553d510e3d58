"""Several pools as the plan: bought where they cost less, planned like fleets, proved together."""

import itertools
from dataclasses import replace

import numpy as np
import pytest

from tokenfleet import simulator
from tokenfleet.app.levers import Levers, _pulled, _Try
from tokenfleet.control import Ladder, Mark, QueueRule, Rung, ScalingPolicy
from tokenfleet.domain.apart import ApartQuestion
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.domain.gpu import Link
from tokenfleet.domain.slo import LatencyTarget, Slo, TrafficClass
from tokenfleet.domain.survival import Redundancy, Zone
from tokenfleet.planner import (
    Event,
    bursts_of_pools,
    plan,
    plan_document,
    priced_pools,
    spike_of_pools,
    tiers,
    tiers_of_pools,
)
from tokenfleet.planner.pools_outlook import PoolsOutlook
from tokenfleet.planner.progress import Reporter
from tokenfleet.planner.quotes import costs_less
from tokenfleet.planner.replays import Replays, with_step_factor
from tokenfleet.planner.scaling import ScalingSetting, Way, compare_scaling
from tokenfleet.planner.spike import around, with_event
from tokenfleet.planner.splits import _why as split_reason
from tokenfleet.planner.splits import split_trials
from tokenfleet.planner.systems import in_place, members_of, pools_of, requests_of_pool, system_of
from tokenfleet.planner.traffic import Traffic
from tokenfleet.simulator import replay_stages
from tokenfleet.workload import grow, peak_window, profile
from unit.planner import toy

CHEAP = toy.replica(gpu="l40s", step_ms=10.0, token_us=40.0, slots=24)
FAST = toy.replica(gpu="h100_sxm", step_ms=6.0, token_us=15.0, slots=48)
PRICES = [toy.price("h100_sxm", 3.0), toy.price("l40s", 1.0)]
USD = {"h100_sxm": 3.0, "l40s": 1.0}
PROMISE = Slo(
    latency=(
        LatencyTarget(metric="ttft", quantile=0.99, limit_s=0.25, traffic_class="chat"),
        LatencyTarget(metric="ttft", quantile=0.95, limit_s=8.0, traffic_class="document"),
    ),
    error_rate_fraction=0.001,
    classes=(TrafficClass(name="chat", takes="short prompts"), TrafficClass(name="document", takes="long prompts")),
)
NAMES = ("ada", "bob")


def mixed(count=1600, rate=40.0):
    """Chats of 200 tokens, and one request in six a document of 20,000; in turn from two tenants."""
    drawn = toy.trace(count=count, rate=rate, inputs=200, outputs=20)
    long = np.arange(count) % 6 == 0
    return replace(
        drawn,
        input_tokens=np.where(long, 20_000, drawn.input_tokens).astype(np.int32),
        class_bits=np.where(long, 2, 1).astype(np.int32),
        classes=("chat", "document"),
        tenant=(np.arange(count) % 2).astype(np.int32),
        tenants=NAMES,
    )


def asked(**more):
    question = toy.question([CHEAP, FAST], PRICES, promise=PROMISE)
    return replace(question, **{"splits": ("length",), **more})


@pytest.fixture(scope="module")
def bought():
    return plan(asked(), mixed())


def test_a_split_that_costs_less_than_the_best_fleet_is_the_plan(bought):
    alone = plan(asked(splits=()), mixed())
    assert bought.chosen is None
    assert [pool.name for pool in bought.pools] == ["short", "long"]
    assert bought.one_fleet == alone.chosen
    assert bought.runners_up == (alone.chosen, *alone.runners_up)
    assert bought.price_usd_per_hour < 0.8 * alone.price_usd_per_hour
    assert sum(pool.request_fraction for pool in bought.pools) == pytest.approx(1.0)
    # Each pool is what a plan of its requests alone would be.
    for pool in bought.pools:
        (sized,) = pool.plan.fleets
        assert sized.spare_count == 1
        assert all(case.kept for case in pool.plan.losses if case.required)
        assert pool.plan.limits


def test_no_small_pools_of_any_kind_keep_the_promise_for_three_percent_less(bought):
    """Every kind of replica and every count of both pools, judged on the whole demand at once."""
    trace = mixed()
    traffic = Traffic(trace, peak_window(trace))
    replays = Replays(PROMISE, "least_in_flight")
    takes = {pool.name: pool.takes for pool in bought.pools}

    def kept(kinds, counts):
        fleets = {
            name: Fleet(groups=(ReplicaGroup(replica=kind, replica_count=count),))
            for name, kind, count in zip(takes, kinds, counts, strict=True)
        }
        run = replay_stages(trace, pools_of(trace, takes, fleets, None), peak_window_s=traffic.window_s)
        return replays.judged(traffic, run.record).kept

    def usd(kinds, counts):
        return sum(USD[kind.deployment.gpu] * (count + 1) for kind, count in zip(kinds, counts, strict=True))

    found = bought.price_usd_per_hour
    every = itertools.product(itertools.product((CHEAP, FAST), repeat=2), itertools.product(range(1, 12), repeat=2))
    cheaper = sorted((each for each in every if usd(*each) < found / 1.03), key=lambda each: usd(*each))
    assert len(cheaper) > 10
    assert not any(kept(*each) for each in cheaper)


def test_all_pools_are_judged_together_with_their_spare_gone(bought):
    trace = mixed()
    fleets = {
        pool.name: replace(
            pool.plan.fleet,
            groups=(replace(pool.plan.fleet.groups[0], replica_count=pool.plan.fleets[0].carrying_count),),
        )
        for pool in bought.pools
    }
    takes = {pool.name: pool.takes for pool in bought.pools}
    window_s = peak_window(trace)
    run = replay_stages(trace, pools_of(trace, takes, fleets, None), peak_window_s=window_s)
    verdict = Replays(PROMISE, "least_in_flight").judged(Traffic(trace, window_s), run.record)
    assert [result.predicted for result in bought.slo_degraded] == [result.predicted for result in verdict.peak]
    assert all(result.kept for result in (*bought.slo_degraded, *bought.slo_degraded_overall, *bought.slo_whole))
    assert all(result.predicted_high >= result.predicted for result in bought.slo_degraded)


def test_an_assumption_is_wrong_in_all_pools_at_once_and_judged_on_all_requests(bought):
    trace = mixed()
    traffic, replays = Traffic(trace, peak_window(trace)), Replays(PROMISE, "least_in_flight")
    system = system_of(bought.pools, None)
    (band,) = {part.sized.replica.band.step_time_factor for part in system.parts}

    def slower(factor):
        made = system.with_kinds(lambda sized: replace(sized, replica=with_step_factor(sized.replica, factor)))
        return made.judged(replays, traffic)

    slow = next(case for case in bought.sensitivity if case.assumption == "step time" and case.change.startswith("x"))
    assert slow.kept == slower(band).kept
    assert slow.broken == tuple(result.name for result in slower(band).broken)
    border = bought.confidence.breaking_step_factor
    assert slower(border).kept
    assert (border >= band) == slow.kept
    said = [line for line in bought.assumptions if "steps" in line and "times as long" in line]
    assert len(said) == 1, "of all pools, not of each"
    assert "of all pools take" in said[0]
    again = [line for line in bought.assumptions if "planned again, each pool is counted by its own requests" in line]
    assert len(again) == 1


def test_no_pool_is_smaller_where_an_assumption_makes_it_harder(bought):
    """All requests together may bear what those of one pool do not: it was counted for its own."""
    loose = Slo(latency=(LatencyTarget(metric="ttft", quantile=0.5, limit_s=8.0),), error_rate_fraction=0.5)
    trace = mixed()
    traffic, system = Traffic(trace, peak_window(trace)), system_of(bought.pools, None)
    outlook = PoolsOutlook(system, Replays(loose, "least_in_flight"), bought.question, traffic, Reporter(None))
    carrying = tuple(sized.carrying_count for sized in bought.fleets)
    assert sum(outlook.needed(traffic, system, kept=True)) < sum(carrying)
    planned = tuple(sized.replica_count for sized in bought.fleets)
    cases = {(case.assumption, case.change): case.pool_replica_count for case in outlook.sensitivity()}
    harder = [counts for (_, change), counts in cases.items() if change.startswith(("+", "x"))]
    assert harder == [planned] * 3
    assert sum(cases["demand", "-30%"]) < sum(planned)


def test_lines_of_the_bill_add_up_in_each_pool_and_over_all(bought):
    lines = ("input", "cached", "output", "headroom", "idle", "spare")
    bills = [pool.plan.bill for pool in bought.pools]
    for bill in (bought.bill, *bills):
        assert sum(getattr(bill, f"{line}_usd_per_hour") for line in lines) == bill.total_usd_per_hour
    assert bought.bill.total_usd_per_hour == bought.price_usd_per_hour
    for line in (*lines, "total"):
        whole = getattr(bought.bill, f"{line}_usd_per_hour")
        assert whole == pytest.approx(sum(getattr(bill, f"{line}_usd_per_hour") for bill in bills), abs=1e-9)


def test_who_pays_for_pools_of_different_prices_adds_up_to_the_cent(bought):
    invoice = bought.invoice
    assert {share.tenant for share in invoice.tenants} == set(NAMES)
    busy = sum(round(100 * share.busy_usd) for share in invoice.tenants)
    kept = sum(round(100 * usd) for usd in (invoice.headroom_usd, invoice.idle_usd, invoice.spare_usd))
    assert busy + kept == round(100 * invoice.total_usd)
    assert sum(round(100 * share.loaded_usd) for share in invoice.tenants) == round(100 * invoice.total_usd)
    by_class = next(each for each in bought.invoices if each.by == "class")
    work = {share.tenant: share.busy_usd for share in by_class.tenants}
    loaded = {share.tenant: share.loaded_usd for share in by_class.tenants}
    # Only documents are served by the long pool, and chats by the short one: each pays for its own.
    for name, pool in zip(("chat", "document"), bought.pools, strict=True):
        own = pool.plan.bill.input_usd_per_hour + pool.plan.bill.output_usd_per_hour
        assert work[name] == pytest.approx(730 * own, abs=0.02)
        # All of it: nobody pays for room and spare replicas of a pool that only others use.
        assert loaded[name] == pytest.approx(730 * pool.plan.bill.total_usd_per_hour, abs=0.02)


def test_what_binds_is_said_of_each_pool_at_rates_of_the_whole(bought):
    peak = bought.peak_rate_per_s
    rates = [use.rate_at_limit_per_s for use in bought.limits]
    assert rates == sorted(rates)
    assert {use.pool for use in bought.limits} == {"short", "long"}
    for pool in bought.pools:
        own = pool.plan.limits[0].rate_at_limit_per_s / pool.plan.peak_rate_per_s
        mine = next(use for use in bought.limits if use.pool == pool.name)
        assert mine.rate_at_limit_per_s == pytest.approx(own * peak)
    factor = min(pool.plan.sustained_rate_per_s / pool.plan.peak_rate_per_s for pool in bought.pools)
    assert bought.sustained_rate_per_s == pytest.approx(max(1.0, factor) * peak)


def test_machines_read_every_pool_and_both_kinds_of_fleets(bought):
    document = plan_document(bought, profile(mixed(), None), {})
    assert document["feasible"]
    assert [group["pool"] for group in document["fleet"]] == ["short", "long"]
    assert [group["router"] for group in document["fleet"]] == ["least_in_flight"] * 2
    assert document["price_usd_per_hour"] == bought.price_usd_per_hour
    assert document["binding_pool"] in ("short", "long")
    assert [pool["takes"]["input_up_to_tokens"] is None for pool in document["pools"]] == [False, True]
    assert all(pool["binding_limit"] and pool["redundancy"] for pool in document["pools"])
    kept = {case["scenario"]: case["kept"] for case in document["redundancy"]}
    assert kept["all replicas present"]
    assert kept["2 spare gone"]
    assert kept["short: 1 replica gone"]
    assert kept["long: 1 replica gone"]
    assert document["runner_up"]["why_it_lost"].startswith("$")
    pooled = [point for point in document["frontier"] if point["pools"]]
    assert [point["price_usd_per_hour"] for point in pooled] == [bought.price_usd_per_hour]
    assert pooled[0]["efficient"]
    told = {each["name"]: each for each in pooled[0]["pools"]}
    for pool in bought.pools:
        sized = pool.plan.fleets[0]
        assert told[pool.name]["gpu"] == sized.replica.deployment.gpu
        assert told[pool.name]["replica_count"] == sized.replica_count
    assert len(document["frontier"]) > 1
    assert document["search"]["candidate_count"] > 2


def test_one_fleet_stays_the_plan_where_pools_cost_as_much_or_more():
    """Two spare replicas in each pool cost more than what the split saves."""
    question = toy.question([toy.replica(slots=16)], PRICES, spare=2)
    even = replace(mixed(), class_bits=None, classes=())
    without = plan(question, even)
    made = plan(replace(question, splits=("length",)), even)
    assert made.pools == ()
    assert made.chosen == without.chosen
    assert made.splits
    assert all(trial.price_usd_per_hour is None or trial.why.startswith("lost") for trial in made.splits)


def test_pools_that_cost_as_much_but_for_rounding_are_not_bought():
    """At $3.45 28 gpus cost a hair more than 8 and 20 of them."""
    assert 8 * 3.45 + 20 * 3.45 < 28 * 3.45
    assert not costs_less(8 * 3.45 + 20 * 3.45, 28 * 3.45)
    assert costs_less(27 * 3.45, 28 * 3.45)
    one = plan(asked(splits=()), mixed()).chosen
    won = split_trials(asked(), mixed(), one)[0]
    assert won.price_usd_per_hour is not None

    def why(usd):
        priced = replace(one, price=replace(one.price, price_usd_per_gpu_hour=usd / one.gpu_count))
        return split_reason(won, priced)

    hair = won.price_usd_per_hour * 1e-12
    assert why(won.price_usd_per_hour + hair).startswith("lost, as dear")
    assert why(won.price_usd_per_hour * 1.01).startswith("won, 1% cheaper")


def test_pools_that_have_no_room_together_are_not_bought(bought):
    """Each pool has room in the zone alone; both together need more GPUs than it has."""
    sizes = [sized.gpu_count for pool in bought.pools for sized in pool.plan.fleets]
    zone = Zone(name="a", gpu_limit_count=sum(sizes) - 1)
    made = plan(asked(redundancy=Redundancy(zones=(zone,))), mixed())
    assert made.pools == ()
    assert any(f"they take {sum(sizes)} GPUs of zone a" in line for line in made.assumptions)


def test_pools_are_priced_without_the_proof_as_the_plan_buys_them(bought):
    priced = priced_pools(asked(), mixed(), bought.one_fleet)
    assert priced.price_usd_per_hour == bought.price_usd_per_hour
    assert [sized.carrying_count for sized in priced.fleets] == [sized.carrying_count for sized in bought.fleets]
    # They are proved together, as the plan proves them.
    assert [result.predicted for result in priced.slo] == [result.predicted for result in bought.slo_degraded]
    total = sum(sized.gpu_count for sized in bought.fleets)
    short = asked(redundancy=Redundancy(gpu_quota_count=total - 1))
    assert priced_pools(short, mixed(), bought.one_fleet) is None
    assert priced_pools(asked(splits=()), mixed(), bought.one_fleet) is None
    cheaper = replace(bought.one_fleet, carrying_count=1, spare_count=0)
    assert priced_pools(asked(), mixed(), cheaper) is None


def test_levers_weigh_pools_beside_the_one_fleet(bought):
    tried = _Try("output cap", "at most 10", "who asks again", asked(), mixed())
    pulled = _pulled(tried, Quiet(), None)
    assert pulled.sized.price_usd_per_hour == bought.one_fleet.price_usd_per_hour
    assert pulled.fleets == pulled.pools.fleets
    assert pulled.price_usd_per_hour == bought.price_usd_per_hour
    found = Levers(base=bought.one_fleet, why_not="", levers=(pulled,), base_pools=pulled.pools)
    assert found.saving_fraction(pulled) == 0.0
    assert replace(found, base_pools=None).saving_fraction(pulled) > 0.2


class Quiet:
    def say(self, text): ...

    def step(self, step, /): ...

    def announce(self, text): ...


def kept_by_each(plan, counts, traffic):
    """Whether every pool keeps its own requests the promise with so many replicas, in a window and over all."""
    found = []
    for pool, count in zip(plan.pools, counts, strict=True):
        mine = requests_of_pool(traffic.trace, pool.takes)
        replays = Replays(pool.plan.question.slo, "least_in_flight")
        found.append(replays.verdict(Traffic(mine, traffic.window_s), pool.plan.chosen.replica, count).kept)
    return found


def test_an_event_on_pools_is_sized_pool_by_pool_and_endured_together(bought):
    event = Event(start_s=12.0, length_s=10.0, factor=3.0)
    who = {pool.name: pool.who for pool in bought.pools}
    usual, ready_s = system_of(bought.pools, bought.handover), {"short": 60.0, "long": 60.0}
    found = spike_of_pools(asked(), mixed(), usual, who, event, ready_after_s=ready_s)
    traffic = around(with_event(mixed(), event), event)
    counts = [pool.needed.carrying_count for pool in found.pools]
    planned = [sized.carrying_count for sized in bought.fleets]
    assert all(kept_by_each(bought, counts, traffic))
    for index, pool in enumerate(found.pools):
        assert pool.needed.spare_count == 1
        assert pool.added_replica_count == max(0, counts[index] - planned[index])
        fewer = [count - (at == index) for at, count in enumerate(counts)]
        if fewer[index]:
            whole = Traffic(traffic.trace, peak_window(traffic.trace))
            assert not (kept_by_each(bought, fewer, traffic)[index] and kept_by_each(bought, fewer, whole)[index])
    assert sum(pool.added_replica_count for pool in found.pools) > 0
    assert found.endured.kept
    assert found.endured.replica_count == sum(counts)
    assert found.usual.replica_count == sum(sized.replica_count for sized in bought.fleets)
    assert (found.usual.kept, found.late.kept) == (False, False)
    assert sum(pool.request_count for pool in found.pools) == pytest.approx(
        3 * sum(pool.usual_request_count for pool in found.pools), abs=3
    )


def test_bursts_of_pools_are_borne_by_all_of_them(bought):
    mark = Mark(waiting_count=2.0), Mark(waiting_count=1.0)
    ladder = Ladder(
        rungs=(Rung(kind="cap_context", enter=mark[0], leave=mark[1], limit_tokens=10_000),),
        queue_limit_count=4,
        climb_s=15.0,
    )
    found = bursts_of_pools(asked(), mixed(count=800), system_of(bought.pools), queue_limit_count=4, ladder=ladder)
    assert [burst.length_s for burst in found] == [10.0, 60.0, 300.0]
    for burst in found:
        assert burst.larger_factor > burst.whole_factor >= burst.carrying_factor >= 1.0
        assert 0.0 <= burst.bounded.refused_fraction < 1.0
        assert [ride.kinds for ride in burst.rungs] == [(), ("cap_context",)]
    # Documents given up at the door of all leave more of the chats served as promised.
    bound, capped = found[-1].rungs
    assert capped.factor >= bound.factor
    assert capped.larger_climbed_count == 1


TIGHTER = Slo(
    latency=(LatencyTarget(metric="ttft", quantile=0.95, limit_s=2.0),), error_rate_fraction=0.001, classes=()
)


def test_a_premium_tier_is_served_in_every_pool(bought):
    trace = mixed()
    premium = np.arange(trace.request_count) % 5 == 0
    found = tiers_of_pools(asked(), trace, bought, premium, TIGHTER)
    assert [pool.pools for pool in found] == [("short",), ("long",)]
    for pool, planned in zip(found, bought.pools, strict=True):
        mine, first = requests_of_pool(trace, planned.takes), premium[members_of(trace, planned.takes)]
        assert pool.premium_fraction == float(first.mean())
        alone = tiers(planned.plan.question, mine, planned.plan.chosen, first, TIGHTER)
        assert pool.options == alone
    # Where only one tier comes to a pool, it is as large whichever way the tiers are kept apart.
    chats = trace.class_bits == 1
    short, long = tiers_of_pools(asked(), trace, bought, chats, TIGHTER)
    assert (short.premium_fraction, long.premium_fraction) == (1.0, 0.0)
    assert {option.replica_count for option in long.options} == {bought.fleets[1].replica_count}
    assert len({option.replica_count for option in short.options}) == 1
    with pytest.raises(BadInput, match="nobody, or everybody"):
        tiers_of_pools(asked(), trace, bought, chats | ~chats, TIGHTER)


def test_a_quota_holds_all_pools_together(bought):
    total = sum(sized.gpu_count for pool in bought.pools for sized in pool.plan.fleets)
    assert total < bought.one_fleet.gpu_count
    within = plan(asked(redundancy=Redundancy(gpu_quota_count=total)), mixed())
    assert [pool.name for pool in within.pools] == [pool.name for pool in bought.pools]
    beyond = plan(asked(redundancy=Redundancy(gpu_quota_count=total - 1)), mixed())
    assert (beyond.pools, beyond.chosen) == ((), None)
    assert any(f"they take {total} GPUs, and the quota is {total - 1}" in line for line in beyond.assumptions)


def test_only_pools_keep_the_promise_where_no_one_fleet_does(monkeypatch):
    """Nobody holds a document and prefills a chat in time: what one kind of replica can, the other cannot.

    What would help one fleet is not looked for then.
    """
    monkeypatch.setattr("tokenfleet.planner.answer.changes_that_work", lambda *_: pytest.fail("searched in vain"))
    small = toy.replica(gpu="l40s", step_ms=8.0, token_us=10.0, block_count=200)
    slow = toy.replica(gpu="h100_sxm", step_ms=60.0, token_us=10.0)
    promise = Slo(
        latency=(
            LatencyTarget(metric="ttft", quantile=0.99, limit_s=0.05, traffic_class="chat"),
            LatencyTarget(metric="ttft", quantile=0.95, limit_s=8.0, traffic_class="document"),
        ),
        error_rate_fraction=0.001,
        classes=PROMISE.classes,
    )
    question = replace(toy.question([small, slow], PRICES, promise=promise), splits=("length",))
    made = plan(question, mixed())
    assert made.one_fleet is None
    assert [sized.replica.deployment.gpu for sized in made.fleets] == ["l40s", "h100_sxm"]
    assert made.reasons == ()
    assert all(result.kept for result in made.slo_degraded)
    document = plan_document(made, profile(mixed(), None), {})
    assert document["feasible"]
    assert document["runner_up"] is None


LINK = Link(name="by hand", line_bytes_per_s=1e6, efficiency_fraction=1.0, latency_s=0.001)
QUICK = toy.replica(gpu="h100_sxm", step_ms=8.0, token_us=30.0, context_ns=400.0, slots=48)
APART_PROMISE = toy.slo(ttft=0.5, itl=0.02)
APART_DEMAND = toy.trace(count=1500, rate=60.0, inputs=900, outputs=60)


@pytest.fixture(scope="module")
def apart():
    question = toy.question([QUICK], [toy.price("h100_sxm", 4.0)], promise=APART_PROMISE)
    links = ApartQuestion(links={"h100_sxm": LINK}, first_token="decode", overlap=False)
    return plan(replace(question, apart=links), APART_DEMAND)


def test_prefill_and_decode_apart_are_the_plan_where_they_cost_less(apart):
    assert [(pool.name, pool.does) for pool in apart.pools] == [("prefill", "prefills"), ("decode", "decodes")]
    assert apart.price_usd_per_hour == apart.apart.found.price_usd_per_hour < apart.one_fleet.price_usd_per_hour
    assert apart.handover.link == LINK
    found = (apart.apart.found.prefill, apart.apart.found.decode)
    assert [(sized.carrying_count, sized.spare_count) for sized in apart.fleets] == [
        (each.carrying_count, each.spare_count) for each in found
    ]
    # What was found beside the plan is what is proved as the plan.
    assert [result.predicted for result in apart.slo_degraded] == [result.predicted for result in apart.apart.found.slo]


def test_each_phase_is_examined_in_its_place(apart):
    prefill, decode = (pool.plan for pool in apart.pools)
    for phase in (prefill, decode):
        assert all(case.kept for case in phase.losses if case.required)
        moment = next(case.moment for case in phase.losses if case.kind == "replica")
        assert moment.lost_request_count > 0
        assert phase.sustained_rate_per_s > 0
        assert phase.saturated_rate_per_s > 0
    assert prefill.degraded.busy.decode_s == 0.0
    assert decode.degraded.busy.prefill_s == 0.0
    # Users' times are those of both pools, gauges and replicas those of one.
    assert np.array_equal(prefill.degraded.finish_s, decode.degraded.finish_s)
    assert prefill.degraded.replica_count == prefill.fleets[0].carrying_count
    assert prefill.degraded.replica.max() < prefill.fleets[0].carrying_count
    # Prompts bind the one pool; nothing of a prompt can bind the other.
    used = {use.limit: use.used_fraction for use in decode.limits}
    assert used["prefill_compute"] <= 1.0


def kept_apart(plan, trace, counts, *, power=0.0):
    """Both phases with so many replicas each, and steps as long as a power of the band makes them."""
    replica = with_step_factor(QUICK, QUICK.band.step_time_factor**power)
    names = [pool.name for pool in plan.pools]
    fleets = {name: Fleet(groups=(ReplicaGroup(replica=replica, replica_count=count),)) for name, count in counts}
    window_s = peak_window(APART_DEMAND)
    pools = pools_of(trace, dict.fromkeys(names), fleets, plan.handover)
    record = replay_stages(trace, pools, peak_window_s=window_s).record
    return Replays(APART_PROMISE, "least_in_flight").judged(Traffic(trace, window_s), record).kept


def test_the_load_curve_of_two_phases_is_theirs_together(apart):
    counts = [(pool.name, pool.plan.fleets[0].carrying_count) for pool in apart.pools]
    assert [point.load_fraction for point in apart.curve] == [0.25, 0.5, 0.75, 0.9, 1.0, 1.1, 1.25, 1.5]
    assert next(point for point in apart.curve if point.load_fraction == 1.0).kept
    for point in apart.curve[-2:]:
        # In the peak window alone, where the curve is judged; what is broken there is broken over all.
        assert point.kept or not kept_apart(apart, grow(APART_DEMAND, point.load_fraction), counts)


def test_wrong_assumptions_ask_for_the_fewest_of_both_phases_that_do(apart):
    cases = {(case.assumption, case.change): case for case in apart.sensitivity}
    assert {name for name, _ in cases} == {"demand", "input tokens", "step time"}
    more = cases["demand", "+30%"]
    planned = tuple(sized.replica_count for sized in apart.fleets)
    assert more.replica_count == sum(more.pool_replica_count) >= sum(planned)
    assert more.price_usd_per_hour == pytest.approx(4.0 * more.replica_count)
    grown = grow(APART_DEMAND, 1.3)
    carrying = [(pool.name, count - 1) for pool, count in zip(apart.pools, more.pool_replica_count, strict=True)]
    assert kept_apart(apart, grown, carrying)
    fewer = more.replica_count - 2 - 1
    names = [name for name, _ in carrying]
    splits = [zip(names, (first, fewer - first), strict=True) for first in range(1, fewer)]
    assert not any(kept_apart(apart, grown, list(split)) for split in splits)
    assert cases["demand", "-30%"].replica_count <= sum(planned)


def test_how_sure_two_phases_are_is_asked_of_both_at_once(apart):
    counts = [(pool.name, pool.plan.fleets[0].carrying_count) for pool in apart.pools]
    likely = apart.confidence
    assert 0.5 < likely.probability_fraction <= 1.0
    power = np.log(likely.breaking_step_factor) / np.log(likely.band_factor)
    assert kept_apart(apart, APART_DEMAND, counts, power=power)
    assert likely.at_least or not kept_apart(apart, APART_DEMAND, counts, power=1.25 * power + 0.1)
    slow = next(case for case in apart.sensitivity if case.change.startswith("x "))
    if apart.sure_pools:
        sure = [(pool.name, sized.carrying_count) for pool, sized in zip(apart.pools, apart.sure_pools, strict=True)]
        assert kept_apart(apart, APART_DEMAND, sure, power=1.0)
        assert slow.pool_replica_count == tuple(sized.replica_count for sized in apart.sure_pools)
    document = plan_document(apart, profile(APART_DEMAND), {})
    assert (document["sure"] is None) == (not apart.sure_pools)
    assert len(document["curve"]) == len(apart.curve)


def test_an_event_on_two_phases_takes_the_least_of_both(apart):
    event = Event(start_s=8.0, length_s=8.0, factor=2.0)
    system = system_of(apart.pools, apart.handover)
    ready_s = {"prefill": 4.0, "decode": 4.0}
    who = {"prefill": "every prompt", "decode": "every answer"}
    found = spike_of_pools(apart.question, APART_DEMAND, system, who, event, ready_after_s=ready_s)
    traffic = around(with_event(APART_DEMAND, event), event)
    replays = Replays(APART_PROMISE, "least_in_flight")
    counts = tuple(pool.needed.carrying_count for pool in found.pools)
    assert found.endured.kept
    assert found.endured.replica_count == sum(counts)
    assert not found.usual.kept
    for index in range(2):
        fewer = tuple(count - (at == index) for at, count in enumerate(counts))
        assert not system.with_counts(fewer).judged(replays, traffic).kept


def test_a_premium_tier_is_served_by_two_phases_with_the_least_of_both(apart):
    premium = np.arange(APART_DEMAND.request_count) % 4 == 0
    promise = toy.slo(ttft=0.2, itl=0.05)
    (found,) = tiers_of_pools(apart.question, APART_DEMAND, apart, premium, promise)
    assert found.pools == ("prefill", "decode")
    ways = {option.name: option for option in found.options}
    assert list(ways) == ["own", "priority", "shared", "alike"]
    for way in ways.values():
        assert way.replica_count == sum(way.pool_replica_count)
        assert all(result.kept for result in (*way.premium, *way.others) if result.sample_count)
        assert way.usd_per_hour == pytest.approx(4.0 * way.replica_count)
    # The stricter promise to everybody: a pair of counts with one fewer of either breaks it.
    system, traffic = system_of(apart.pools, apart.handover), Traffic(APART_DEMAND, peak_window(APART_DEMAND))
    counts = tuple(count - 1 for count in ways["alike"].pool_replica_count)
    replays = Replays(promise, "least_in_flight")
    assert system.with_counts(counts).judged(replays, traffic).kept
    for index in range(2):
        fewer = tuple(count - (at == index) for at, count in enumerate(counts))
        assert not all(fewer) or not system.with_counts(fewer).judged(replays, traffic).kept


def test_one_of_two_phases_scales_in_its_place(apart):
    fleets = {pool.name: pool.plan.fleet for pool in apart.pools}
    most = replace(fleets["prefill"].groups[0], replica_count=fleets["prefill"].groups[0].replica_count + 2)
    setting = ScalingSetting(
        fleet=replace(fleets["prefill"], groups=(most,)), slo=APART_PROMISE, start_count=1, cold_start_s=5.0
    )
    replay = in_place("prefill", dict.fromkeys(fleets), fleets, apart.handover, simulator.replay)
    way = Way(name="queue", policy=lambda _: ScalingPolicy(rules=(QueueRule(),), max_count=most.replica_count))
    fixed, queue = compare_scaling(APART_DEMAND, setting, [way], replay=replay).ways
    assert fixed.minutes.broken_count == 0
    counts = [fixed.most_count - 1, fleets["decode"].groups[0].replica_count]
    assert not kept_apart(apart, APART_DEMAND, list(zip(fleets, counts, strict=True)))
    # Only the replicas of the pool that scales are paid for, and those it has not started are not.
    assert queue.gpu_hours < queue.most_count * queue.record.end_s / 3600.0
    assert queue.record.turmoil.state_s.shape[0] == most.replica_count
    assert queue.minutes.broken_count > 0, "one replica is too few until others have started"


def test_two_phases_are_priced_as_they_are_bought(apart):
    priced = priced_pools(apart.question, APART_DEMAND, apart.one_fleet)
    assert priced.names == ("prefill", "decode")
    assert priced.price_usd_per_hour == apart.price_usd_per_hour


def test_money_of_two_phases_adds_up_though_both_serve_every_request(apart):
    prefill, decode = (pool.plan.bill for pool in apart.pools)
    assert prefill.output_usd_per_hour == 0.0
    assert decode.input_usd_per_hour == 0.0
    assert apart.bill.input_usd_per_hour == prefill.input_usd_per_hour
    assert apart.bill.output_usd_per_hour == decode.output_usd_per_hour
    assert apart.bill.total_usd_per_hour == apart.price_usd_per_hour
    # All are answered, so an hour's money goes to the requests of an hour.
    assert (apart.degraded.finish_s > 0).all()
    assert apart.bill.usd_per_request == pytest.approx(apart.price_usd_per_hour / 3600 / apart.mean_rate_per_s)
    assert apart.bill.span_s == prefill.span_s == decode.span_s


def test_what_is_asked_of_all_pools_is_kept_by_all_or_they_are_not_bought():
    """A cap of 70 % on what the pools take of what they sustain: the pair found is fuller than that."""
    question = toy.question([QUICK], [toy.price("h100_sxm", 4.0)], promise=toy.slo(ttft=0.5, itl=0.02))
    links = ApartQuestion(links={"h100_sxm": LINK}, first_token="decode", overlap=False)
    capped = replace(question, apart=links, utilization_cap_fraction=0.5)
    made = plan(capped, toy.trace(count=1500, rate=60.0, inputs=900, outputs=60))
    assert made.pools == ()
    assert any("fuller than the utilization cap allows" in line for line in made.assumptions)
