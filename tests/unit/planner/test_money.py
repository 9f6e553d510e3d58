from dataclasses import replace

import numpy as np
import pytest

from tokenfleet.domain.trace import Observed
from tokenfleet.planner import plan, plan_document
from tokenfleet.planner.money import gpus_by_slot
from tokenfleet.workload import profile
from unit.planner import toy

pytestmark = pytest.mark.usefixtures("toy_world")


def question(**more):
    return toy.question([toy.replica(slots=4, tensor_parallel=2)], [toy.price("h100_sxm", 3.0)], **more)


def with_tenants(trace, tenants=("chat", "batch"), shares=(0.7, 0.3)):
    picked = np.random.default_rng(3).choice([*range(len(tenants)), -1], trace.request_count, p=[*shares, 0.0])
    picked[:5] = -1
    return replace(trace, tenant=picked.astype(np.int32), tenants=tenants)


@pytest.mark.parametrize("tenants", [("chat", "batch"), ("chat", "unknown")])
def test_tenants_idle_and_spare_are_the_invoice_to_the_cent(tenants):
    trace = with_tenants(toy.trace(count=600, rate=40.0), tenants)
    made = plan(question(), trace)
    month = made.invoice
    assert {share.tenant for share in month.tenants} == {*tenants, "nobody" if "unknown" in tenants else "unknown"}
    cents = [round(100 * share.busy_usd) for share in month.tenants]
    unused = month.headroom_usd + month.idle_usd + month.spare_usd
    assert sum(cents) + round(100 * unused) == round(100 * month.total_usd)
    assert sum(round(100 * share.loaded_usd) for share in month.tenants) == round(100 * month.total_usd)
    assert month.total_usd == round(made.bill.total_usd_per_hour * 730, 2)
    assert all(usd == round(usd, 2) for share in month.tenants for usd in (share.busy_usd, share.loaded_usd))
    assert sum(share.request_count for share in month.tenants) == 600
    by_name = {share.tenant: share for share in month.tenants}
    assert by_name["chat"].busy_usd > by_name[tenants[1]].busy_usd
    document = plan_document(made, profile(trace), {})
    assert document["tenants"]["total_usd"] == month.total_usd


def test_a_trace_without_tenants_has_no_invoice():
    made = plan(question(), toy.trace())
    assert made.invoice is None
    assert made.purchase is None
    assert plan_document(made, profile(toy.trace()), {})["tenants"] is None


def labelled(trace, labels=("premium", "standard"), share=0.2):
    picked = (np.random.default_rng(5).random(trace.request_count) >= share).astype(np.int32)
    bits = np.where(picked == 0, 1, 0) + np.where(trace.input_tokens > 520, 2, 0)
    return replace(
        trace,
        observed=Observed(label=picked, labels=labels),
        class_bits=bits.astype(np.int32),
        classes=("premium", "long"),
    )


def test_every_split_of_a_month_adds_up_to_the_invoice_to_the_cent():
    made = plan(question(), labelled(toy.trace(count=600, rate=40.0)))
    assert [each.by for each in made.invoices] == ["label", "class"]
    for month in made.invoices:
        cents = sum(round(100 * share.busy_usd) for share in month.tenants)
        unused = month.headroom_usd + month.idle_usd + month.spare_usd
        assert cents + round(100 * unused) == round(100 * month.total_usd)
        assert sum(round(100 * share.loaded_usd) for share in month.tenants) == round(100 * month.total_usd)
        assert sum(share.request_count for share in month.tenants) == 600
    by_class = {share.tenant: share for share in made.invoices[1].tenants}
    assert set(by_class) == {"premium", "long", "premium + long", "no class"}
    by_label = {share.tenant: share for share in made.invoices[0].tenants}
    both = by_class["premium"].busy_usd + by_class["premium + long"].busy_usd
    assert both == pytest.approx(by_label["premium"].busy_usd, abs=0.02)


def test_requests_of_all_shares_pay_the_bill():
    made = plan(question(), labelled(toy.trace(count=600, rate=40.0)))
    months = 730 * 3600 / made.bill.span_s
    shares = made.invoices[0].tenants
    paid = sum(share.loaded_usd_per_request * share.request_count * months for share in shares)
    assert paid == pytest.approx(made.invoices[0].total_usd)
    assert all(share.busy_usd_per_request < share.loaded_usd_per_request for share in shares)
    document = plan_document(made, profile(toy.trace()), {})
    (label, _) = document["cost"]["attributed"]
    assert (label["by"], {share["name"] for share in label["shares"]}) == ("label", {"premium", "standard"})


def test_classes_that_are_the_labels_are_said_once():
    trace = labelled(toy.trace(count=600, rate=40.0))
    same = replace(trace, class_bits=(1 << trace.observed.label).astype(np.int32), classes=("premium", "standard"))
    assert [each.by for each in plan(question(), same).invoices] == ["label"]


@pytest.mark.parametrize(("hours", "slot_s"), [(48, 3600.0), (12, 1200.0), (3, 300.0), (0.1, 60.0)])
def test_less_than_a_day_is_taken_in_shorter_slots(hours, slot_s):
    trace = toy.trace(count=600)
    longer = replace(trace, arrival_s=trace.arrival_s * hours * 3600.0 / trace.arrival_s[-1])
    chosen = plan(question(), toy.trace()).chosen
    found_s, gpus = gpus_by_slot(question(), chosen, longer)
    assert found_s == slot_s
    assert len(gpus) == int(hours * 3600.0 // slot_s)
    assert gpus.max() == chosen.gpu_count
