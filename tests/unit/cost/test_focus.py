"""Rows for cost tools: conformant as far as they are checked, and still the invoice to the cent."""

import csv
import dataclasses
import io
from datetime import UTC, datetime, timedelta, timezone
from decimal import Decimal

import pytest
from hypothesis import given, settings

from tokenfleet.cost import FocusAccount, TokenCounts, focus_csv, focus_problems, focus_rows, invoice
from tokenfleet.domain.errors import BadInput
from unit.cost.toy import amounts, bill_of, users

ACCOUNT = FocusAccount(
    billing_account_id="platform-01",
    billing_account_name="AI platform",
    service_provider="Platform team",
    host_provider="Nebius",
    service_name="Shared inference",
    resource_id="fleet/chat",
    model="Llama-3.3-70B",
    usd_per_gpu_hour=3.5,
)
DAY = (datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 11, 2, tzinfo=UTC))
MONTH = (datetime(2026, 11, 1, tzinfo=UTC), datetime(2026, 12, 1, tzinfo=UTC))
USAGE = {
    "chat": TokenCounts(input_tokens=9_000_000, cached_tokens=3_000_000, output_tokens=700_000),
    "batch": TokenCounts(input_tokens=1_000_000, cached_tokens=0, output_tokens=90_000),
}


def rows(version="1.3", bill=None, usage=None):
    made = invoice(bill or bill_of(4.21, 0.37, 6.05, 2.22, 7.99, 3.5), usage or USAGE, hours=24.0)
    return made, focus_rows(made, ACCOUNT, charge_period=DAY, billing_period=MONTH, version=version)


@pytest.mark.parametrize("version", ["1.2", "1.3", "1.4"])
def test_rows_conform_and_are_the_invoice(version):
    made, found = rows(version)
    assert focus_problems(found, version=version) == ()
    assert sum(row["BilledCost"] for row in found) * 100 == made.total_cents
    assert {row["x_Phase"] for row in found} == {"input", "cached", "output", "headroom", "idle", "spare"}


@settings(max_examples=40)
@given(usd=amounts, usage=users)
def test_any_invoice_conforms_to_the_cent(usd, usage):
    made, found = rows(bill=bill_of(*usd), usage=usage)
    assert focus_problems(found, version="1.3") == ()
    assert sum(row["BilledCost"] for row in found) * 100 == made.total_cents


def test_providers_are_named_as_the_version_wants():
    _, old = rows("1.2")
    _, new = rows("1.3")
    assert (old[0]["ProviderName"], old[0]["PublisherName"]) == ("Platform team", "Nebius")
    assert "AllocatedMethodId" not in old[0]
    assert (new[0]["ServiceProviderName"], new[0]["HostProviderName"]) == ("Platform team", "Nebius")
    assert "ProviderName" not in new[0]
    assert any("ProviderName is no column" in str(each) for each in focus_problems(old, version="1.4"))


def test_the_rule_by_which_it_was_shared_is_named():
    _, by_tokens = rows()
    timed = {
        name: dataclasses.replace(used, work_s={"input": 2.0, "cached": 1.0, "output": 3.0})
        for name, used in USAGE.items()
    }
    _, by_time = rows(usage=timed)
    for found, method in ((by_tokens, "tokenfleet-tokens-by-kind-1"), (by_time, "tokenfleet-gpu-time-by-kind-1")):
        assert {row["AllocatedMethodId"] for row in found} == {method, None}


def test_tokens_are_priced_by_the_token():
    _, found = rows()
    (row,) = [row for row in found if row["x_Tenant"] == "chat" and row["x_Phase"] == "output"]
    assert (row["PricingUnit"], row["PricingQuantity"], row["x_OutputTokens"]) == ("Tokens", 700_000, 700_000)
    assert row["x_InputTokens"] is None
    assert row["ListUnitPrice"] * 700_000 == pytest.approx(row["ListCost"])
    assert (row["AllocatedResourceId"], row["SkuId"]) == ("chat", "Llama-3.3-70B/output")
    assert row["ChargePeriodStart"] == "2026-11-01T00:00:00Z"


def test_a_token_of_a_kind_has_one_price_whoever_uses_it():
    """By gpu time one tenant's token is dearer than another's; what that token costs on the list is the mean."""
    timed = {
        name: dataclasses.replace(used, work_s={"input": 1.0, "cached": 1.0, "output": 1.0})
        for name, used in USAGE.items()
    }
    made, found = rows(usage=timed)
    billed = {row["x_Tenant"]: row for row in found if row["x_Phase"] == "output"}
    assert billed["chat"]["BilledCost"] == billed["batch"]["BilledCost"]
    assert len({row["SkuPriceId"] for row in billed.values()}) == 1
    (each,) = {row["ListUnitPrice"] for row in billed.values()}
    assert each == sum(row["BilledCost"] for row in billed.values()) / 790_000
    assert each == billed["batch"]["ContractedUnitPrice"]
    assert billed["batch"]["ListCost"] == each * 90_000 < billed["batch"]["BilledCost"]
    # Nothing is lost: the list is only another way to share it.
    assert float(sum(row["ListCost"] for row in found)) == pytest.approx(made.total_cents / 100)


@pytest.mark.parametrize(("part", "usd"), [("headroom", "2.22"), ("idle", "7.99"), ("spare", "3.5")])
def test_what_nobody_used_is_nobodys_and_priced_by_the_gpu_hour(part, usd):
    _, found = rows()
    (row,) = [row for row in found if row["x_Phase"] == part]
    assert (row["SubAccountId"], row["AllocatedMethodId"]) == (None, None)
    assert row["PricingUnit"] == "GPU-Hours"
    assert row["PricingQuantity"] == pytest.approx(Decimal(usd) * 24 / Decimal("3.5"))


def test_a_file_of_them():
    _, found = rows()
    text = focus_csv(found)
    read = list(csv.DictReader(io.StringIO(text)))
    assert len(read) == len(found)
    assert "E-" not in text, "no exponents"
    assert sum(Decimal(row["BilledCost"]) for row in read) == sum(row["BilledCost"] for row in found)
    assert read[-1]["ChargeClass"] == ""
    assert focus_csv([]) == ""


def test_what_breaks_the_specification_is_found():
    _, found = rows()
    row = dict(found[0])
    missing = {name: cell for name, cell in row.items() if name != "BilledCost"}
    for broken, words in [
        (missing, "BilledCost is missing"),
        (row | {"ServiceName": None}, "ServiceName is null"),
        (row | {"ListCost": Decimal("99.5")}, "ListCost 99.5 is not"),
        (row | {"SkuPriceId": None}, "ListUnitPrice and SkuPriceId must both"),
        (row | {"PricingCategory": None}, "PricingCategory and SkuPriceId must both"),
        (row | {"TokenCount": Decimal(1)}, "TokenCount is no column of FOCUS 1.3"),
    ]:
        assert any(words in str(each) for each in focus_problems([broken], version="1.3")), words


def test_two_prices_of_one_sku_are_found():
    _, found = rows()
    first, other = (row for row in found if row["x_Phase"] == "output")
    dearer = other | {name: 2 * other[name] for name in ("ListUnitPrice", "ListCost")}
    said = [str(each) for each in focus_problems([first, dearer], version="1.3")]
    assert len(said) == 1
    assert "ListUnitPrice" in said[0]
    assert "'Llama-3.3-70B/output/Tokens'" in said[0]


def test_times_need_a_zone_and_an_order():
    made, _ = rows()
    naive = (datetime(2026, 11, 1), datetime(2026, 11, 2))
    with pytest.raises(BadInput) as caught:
        focus_rows(made, ACCOUNT, charge_period=naive, billing_period=MONTH[::-1], version="2.0")
    assert len(caught.value.problems) == 3
    berlin = tuple(time.astimezone(timezone(timedelta(hours=1))) for time in DAY)
    shifted = focus_rows(made, ACCOUNT, charge_period=berlin, billing_period=MONTH)
    assert shifted[0]["ChargePeriodStart"] == "2026-11-01T00:00:00Z"
