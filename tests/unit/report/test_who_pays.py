import dataclasses
import re

from tokenfleet.app.report import render_report
from tokenfleet.domain.buying import Purchase, PurchaseLine
from tokenfleet.domain.outlook import Confidence, SensitivityCase
from tokenfleet.domain.plan import TenantInvoice, TenantShare


def share(name, busy, loaded):
    return TenantShare(
        tenant=name,
        request_count=10,
        input_tokens=100,
        cached_tokens=0,
        output_tokens=10,
        busy_usd=busy,
        loaded_usd=loaded,
    )


def text_of(page):
    return " ".join(re.sub(r"<[^>]+>", " ", page).split())


def test_tenants_and_purchase_are_shown_and_add_up(plan, workload, resolved):
    tenants = tuple(share(f"tenant-{index:02}", 1.0, 1.5) for index in range(25))
    told = dataclasses.replace(
        plan,
        invoice=TenantInvoice(
            duration_s=730.0 * 3600, total_usd=37.50, headroom_usd=4.0, idle_usd=6.0, spare_usd=2.50, tenants=tenants
        ),
        purchase=Purchase(
            described=False,
            commit_from_fraction=0.6,
            hour_count=48,
            lines=(
                PurchaseLine(name="reserved_1y", mean_gpu_count=4, usd_per_hour=8.0),
                PurchaseLine(name="on_demand", mean_gpu_count=2.5, usd_per_hour=7.5),
            ),
            total_usd_per_hour=15.5,
            all_on_demand_usd_per_hour=19.5,
            committed_gpu_count=4,
            unknown_terms=("reserved_3y",),
        ),
    )
    text = text_of(render_report(told, workload, resolved, command="tokenfleet plan"))
    assert "tenant-19" in text
    assert "tenant-20" not in text
    assert "5 others 50 $5.00 $7.50" in text
    assert "Invoice $37.50 $37.50" in text
    assert "reserved 1y 4 $8.00/h" in text
    assert "reserved 3y no published price" in text


def test_what_changes_the_bill_most_comes_first(plan, workload, resolved):
    cases = tuple(
        SensitivityCase(
            assumption="demand",
            change=change,
            kept=price is not None and price < 30,
            broken=() if price is not None and price < 30 else ("ttft_p99",),
            replica_count=count,
            price_usd_per_hour=price,
        )
        for change, count, price in (("-30%", 4, 20.0), ("+30%", 8, 40.0), ("+300%", None, None))
    )
    sure = Confidence(probability_fraction=0.93, breaking_step_factor=1.35, band_factor=1.4, at_least=False)
    told = dataclasses.replace(plan, sensitivity=cases, confidence=sure)
    text = text_of(render_report(told, workload, resolved, command="tokenfleet plan"))
    assert text.index("demand +300%") < text.index("demand +30%") < text.index("demand -30%")
    assert "breaks ttft_p99" in text
    assert "probability of 93 %" in text.replace("\u202f", " ").replace("\xa0", " ")
