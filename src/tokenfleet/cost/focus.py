"""Export for cost tools: an invoice as rows of the FinOps Open Cost and Usage Specification (FOCUS).

One row per tenant and kind of tokens, and one each for headroom, idle and spare. Columns are those of the Cost and
Usage dataset of FOCUS 1.3 and 1.4; 1.2 names providers differently and has no columns for a split. FOCUS defines none
for tokens, so those start with ``x_``, as the specification asks of additions.
"""

import csv
import json
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import field
from datetime import UTC, datetime
from decimal import Decimal
from io import StringIO
from typing import Literal, get_args

from tokenfleet.cost.sharing import Invoice, InvoiceLine
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.records import dataclass

FocusVersion = Literal["1.2", "1.3", "1.4"]
FocusRow = dict[str, str | Decimal | None]

ALLOCATION_METHODS = {False: "tokenfleet-tokens-by-kind-1", True: "tokenfleet-gpu-time-by-kind-1"}
"""Busy lines shared by tokens of their kind, or by the gpu time that these took; changes whenever a rule does."""
_CENT = Decimal("0.01")
_BILLED = ("BilledCost", "EffectiveCost")
_NOT_NULL = (
    "BilledCost",
    "BillingAccountId",
    "BillingCurrency",
    "BillingPeriodEnd",
    "BillingPeriodStart",
    "ChargeCategory",
    "ChargeFrequency",
    "ChargePeriodEnd",
    "ChargePeriodStart",
    "ContractedCost",
    "EffectiveCost",
    "InvoiceIssuerName",
    "ListCost",
    "ServiceCategory",
    "ServiceName",
    "ServiceSubcategory",
)
_MAY_BE_NULL = ("BillingAccountName", "ChargeClass", "ChargeDescription", "PricingQuantity", "PricingUnit")
_PROVIDERS: dict[str, tuple[str, ...]] = {
    "1.2": ("ProviderName", "PublisherName"),
    "1.3": ("ServiceProviderName", "HostProviderName"),
    "1.4": ("ServiceProviderName", "HostProviderName"),
}
_OF_A_SPLIT = (
    "AllocatedMethodDetails",
    "AllocatedMethodId",
    "AllocatedResourceId",
    "AllocatedResourceName",
    "AllocatedTags",
)
_OTHER = (
    "ConsumedQuantity",
    "ConsumedUnit",
    "ContractedUnitPrice",
    "ListUnitPrice",
    "PricingCategory",
    "RegionId",
    "RegionName",
    "ResourceId",
    "ResourceName",
    "ResourceType",
    "SkuId",
    "SkuPriceId",
    "SubAccountId",
    "SubAccountName",
    "Tags",
)
_TOLERANCE = Decimal("1e-9")
_UNUSED: dict[str, str] = {
    "headroom": "room that the promise keeps free beside the work",
    "idle": "replicas that a load below the peak has no use for",
    "spare": "replicas kept for the day one fails",
}


@dataclass(frozen=True, slots=True, kw_only=True)
class FocusAccount:
    """Who bills whom for what; every name as it should appear in the export."""

    billing_account_id: str
    billing_account_name: str
    service_provider: str
    """Who offers the service: the platform team, or the company."""
    host_provider: str
    """Whose gpus it runs on."""
    service_name: str
    resource_id: str
    """Of the fleet that is shared."""
    model: str
    usd_per_gpu_hour: float
    """Price the bill was made with, for the gpu-hours of what nobody used."""
    usd_per_gpu_hour_of: Mapping[str, float] = field(default_factory=dict)
    """By line of what nobody used, where gpus of several prices stand behind it: their mean there."""
    invoice_issuer: str | None = None
    """Who issues the invoice; the service provider unless given."""


def focus_rows(
    invoice: Invoice,
    account: FocusAccount,
    *,
    charge_period: tuple[datetime, datetime],
    billing_period: tuple[datetime, datetime],
    version: FocusVersion = "1.3",
) -> tuple[FocusRow, ...]:
    """An invoice as FOCUS rows; their billed costs add up to it, to the cent.

    Args:
        invoice: of the charge period.
        account: names and ids.
        charge_period: start and end of what was used, aware of their time zone; the end is exclusive.
        billing_period: start and end of the invoice's period.
        version: of the specification.

    Raises:
        BadInput: an unknown version, a time without zone, or a period that ends before it starts.
    """
    problems = _period_problems(charge_period=charge_period, billing_period=billing_period)
    if version not in get_args(FocusVersion):
        problems.append(Problem("version", f"unknown FOCUS {version!r}", f"one of {', '.join(get_args(FocusVersion))}"))
    if problems:
        raise BadInput(problems)
    times = {
        "BillingPeriodStart": _utc(billing_period[0]),
        "BillingPeriodEnd": _utc(billing_period[1]),
        "ChargePeriodStart": _utc(charge_period[0]),
        "ChargePeriodEnd": _utc(charge_period[1]),
    }
    method = ALLOCATION_METHODS[invoice.by_gpu_time]
    lines = [line for line in invoice.lines if line.cents or line.token_count]
    prices = _token_prices(lines)
    return tuple(_row(line, account, times, version, method, prices) for line in lines)


def focus_csv(rows: Sequence[FocusRow]) -> str:
    """Rows as CSV; a null is an empty cell, a decimal has no exponent."""
    if not rows:
        return ""
    out = StringIO()
    writer = csv.DictWriter(out, fieldnames=list(rows[0]), lineterminator="\n")
    writer.writeheader()
    for row in rows:
        writer.writerow({name: format(cell, "f") if isinstance(cell, Decimal) else cell for name, cell in row.items()})
    return out.getvalue()


def focus_problems(rows: Sequence[Mapping[str, str | Decimal | None]], *, version: FocusVersion) -> tuple[Problem, ...]:
    """What in the rows breaks the specification, as far as it is checked here.

    Mandatory columns and nulls, columns that the version does not have (additions start with ``x_``), that unit prices
    and the pricing category are there exactly where a SKU is priced, that each ``SkuPriceId`` has one unit price, and
    that a cost is unit price times quantity, to a relative 1e-9 (a quotient of decimals has no exact end). Of the
    columns that FOCUS lets out, it knows those written by :func:`focus_rows` and those of regions and resources.
    """
    found: list[Problem] = []
    known = {*_NOT_NULL, *_MAY_BE_NULL, *_OTHER, *_PROVIDERS[version], *(() if version == "1.2" else _OF_A_SPLIT)}
    for index, row in enumerate(rows):
        where = f"row {index}"
        found += [
            Problem(where, f"{name} is missing", "give the column, empty where it may be null")
            for name in (*_NOT_NULL, *_MAY_BE_NULL, *_PROVIDERS[version])
            if name not in row
        ]
        found += [
            Problem(where, f"{name} is null", "give its value")
            for name in (*_NOT_NULL, *_PROVIDERS[version])
            if name in row and row[name] in {None, ""}
        ]
        found += [
            Problem(
                where, f"{name} is no column of FOCUS {version} known here", "start the name of an addition with x_"
            )
            for name in row
            if name not in known and not name.startswith("x_")
        ]
        found += _price_problems(where, row)
    return (*found, *_list_problems(rows))


def _list_problems(rows: Iterable[Mapping[str, str | Decimal | None]]) -> Iterator[Problem]:
    """A price on a list is one, whoever uses what it is the price of."""
    known: dict[tuple[object, str], Decimal] = {}
    for index, row in enumerate(rows):
        for name in ("ListUnitPrice", "ContractedUnitPrice"):
            unit = row.get(name)
            if row.get("SkuPriceId") is None or not isinstance(unit, Decimal):
                continue
            first = known.setdefault((row["SkuPriceId"], name), unit)
            if abs(unit - first) > _TOLERANCE * abs(first):
                what = f"{name} {unit} of SkuPriceId {row['SkuPriceId']!r} is {first} in a row before"
                yield Problem(f"row {index}", what, "give one price for each SkuPriceId")


def _price_problems(where: str, row: Mapping[str, str | Decimal | None]) -> list[Problem]:
    problems = []
    priced = row.get("SkuPriceId") is not None
    if priced != (row.get("PricingCategory") is not None):
        problems.append(Problem(where, "PricingCategory and SkuPriceId must both be there or both be null"))
    for kind in ("List", "Contracted"):
        unit, cost, quantity = (row.get(name) for name in (f"{kind}UnitPrice", f"{kind}Cost", "PricingQuantity"))
        if priced != (unit is not None):
            problems.append(Problem(where, f"{kind}UnitPrice and SkuPriceId must both be there or both be null"))
        if not (isinstance(unit, Decimal) and isinstance(cost, Decimal) and isinstance(quantity, Decimal)):
            continue
        if abs(unit * quantity - cost) > _TOLERANCE * max(abs(cost), Decimal(1)):
            problems.append(Problem(where, f"{kind}Cost {cost} is not {unit} x {quantity}"))
    return problems


def _token_prices(lines: Iterable[InvoiceLine]) -> dict[str, Decimal]:
    """By kind of tokens what one costs on the mean of all tenants: the price on the list, which nobody has alone."""
    cents: Counter[str] = Counter()
    tokens: Counter[str] = Counter()
    for line in lines:
        if line.token_count is not None:
            cents[line.part] += line.cents
            tokens[line.part] += line.token_count
    return {part: cents[part] * _CENT / count for part, count in tokens.items() if count}


def _row(
    line: InvoiceLine,
    account: FocusAccount,
    times: Mapping[str, str],
    version: FocusVersion,
    method: str,
    prices: Mapping[str, Decimal],
) -> FocusRow:
    cost = line.cents * _CENT
    row: FocusRow = {
        **dict.fromkeys(_BILLED, cost),
        **times,
        "BillingAccountId": account.billing_account_id,
        "BillingAccountName": account.billing_account_name,
        "BillingCurrency": "USD",
        "ChargeCategory": "Usage",
        "ChargeClass": None,
        "ChargeDescription": _description(line, account),
        "ChargeFrequency": "Usage-Based",
        "InvoiceIssuerName": account.invoice_issuer or account.service_provider,
        "ResourceId": account.resource_id,
        "ServiceCategory": "AI and Machine Learning",
        "ServiceSubcategory": "Generative AI",
        "ServiceName": account.service_name,
        "SubAccountId": line.key or None,
        "SubAccountName": line.key or None,
        "Tags": json.dumps({"tenant": line.key} if line.key else {}),
        **_pricing(line, account, cost, prices),
        **dict(zip(_PROVIDERS[version], (account.service_provider, account.host_provider), strict=True)),
    }
    if version != "1.2":
        # What nobody used belongs to the fleet itself: nothing was allocated.
        row |= {
            "AllocatedMethodId": method if line.key else None,
            "AllocatedResourceId": line.key or None,
            "AllocatedResourceName": line.key or None,
        }
    tokens = None if line.token_count is None else Decimal(line.token_count)
    row |= {
        "x_Tenant": line.key or None,
        "x_Model": account.model,
        "x_Phase": line.part,
        "x_InputTokens": tokens if line.part == "input" else None,
        "x_CachedTokens": tokens if line.part == "cached" else None,
        "x_OutputTokens": tokens if line.part == "output" else None,
    }
    return dict(sorted(row.items(), key=lambda item: (item[0].startswith("x_"), item[0])))


def _pricing(line: InvoiceLine, account: FocusAccount, cost: Decimal, prices: Mapping[str, Decimal]) -> FocusRow:
    """Quantity, unit and unit price: of a token, or of a gpu-hour where nobody's tokens are meant.

    What a tenant is billed for its tokens is its part of the gpu time; on the list a token of one kind has one price.
    """
    usd_per_gpu_hour = account.usd_per_gpu_hour_of.get(line.part, account.usd_per_gpu_hour)
    if line.token_count is not None:
        quantity, unit = Decimal(line.token_count), "Tokens"
    elif usd_per_gpu_hour > 0.0:
        quantity, unit = cost / Decimal(str(usd_per_gpu_hour)), "GPU-Hours"
    else:
        quantity, unit = Decimal(0), "GPU-Hours"
    sku = f"{account.model}/{line.part}"
    each = prices.get(line.part) if line.token_count is not None else cost / quantity if quantity else None
    listed = cost if each is None else each * quantity
    return {
        "ListCost": listed,
        "ContractedCost": listed,
        "ConsumedQuantity": quantity,
        "ConsumedUnit": unit,
        "PricingQuantity": quantity,
        "PricingUnit": unit,
        "PricingCategory": "Standard" if each is not None else None,
        "ListUnitPrice": each,
        "ContractedUnitPrice": each,
        "SkuId": sku if each is not None else None,
        "SkuPriceId": f"{sku}/{unit}" if each is not None else None,
    }


def _description(line: InvoiceLine, account: FocusAccount) -> str:
    if line.key:
        return f"{line.part} tokens of {line.key} on {account.model}"
    return f"{account.model}: {_UNUSED[line.part]}"


def _period_problems(**periods: tuple[datetime, datetime]) -> list[Problem]:
    problems = []
    for name, (start, end) in periods.items():
        if start.tzinfo is None or end.tzinfo is None:
            problems.append(Problem(name, "a time without its zone", "give times with a zone, such as UTC"))
        elif end <= start:
            problems.append(Problem(name, f"ends at {end}, starts at {start}", "give an end after the start"))
    return problems


def _utc(time: datetime) -> str:
    return time.astimezone(UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
