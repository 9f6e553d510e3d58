"""Fifth section: a bill that adds up."""

from collections.abc import Callable, Sequence

from tokenfleet.app.buying_words import dearer_lines, spot_lines, term_of
from tokenfleet.app.report.charts import Table
from tokenfleet.app.report.words import UNKNOWN, cents_that_add_up, digits, exact, percent, usd
from tokenfleet.cost import units_of
from tokenfleet.domain.alternatives import Alternatives, Service
from tokenfleet.domain.buying import Purchase, TermPrice
from tokenfleet.domain.gpu import GpuPrice
from tokenfleet.domain.plan import Bill, Sized, TenantInvoice
from tokenfleet.domain.records import dataclass

_HOURS_PER_MONTH = 730
_MOST_TENANTS = 20
_PAYER = {"tenant": "Tenant", "label": "Label of the log", "model": "Model of the log", "class": "Class"}


@dataclass(frozen=True, slots=True, kw_only=True)
class BillLine:
    """One line of the bill; lines add up to the total as shown."""

    name: str
    what: str
    usd_per_hour: str
    share: str
    width_percent: float
    colour: int
    """Which of the page's colours marks it."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Money:
    """The fifth section."""

    lines: tuple[BillLine, ...]
    total: str
    month: str
    unit_prices: Table
    prices: Table
    quotes: tuple[Table, ...]
    tenants: Table | None
    attributed: tuple[Table, ...]
    """The same month by label, model and class."""
    purchase: Table | str
    """How to buy, or why nobody can say and what to give; empty where nobody asked."""
    alternatives: Table | None
    units: Table | None
    service: Table | None
    """A month of the fleet and everything beside it."""


def account(
    bill: Bill,
    bought: Sequence[Sized],
    invoice: TenantInvoice | None = None,
    purchase: Purchase | str = "",
    other: Alternatives | None = None,
    attributed: Sequence[TenantInvoice] = (),
) -> Money:
    """The bill of what is bought, who pays it, how to buy, and what else would do the work."""
    named = (
        ("Input", "reading prompts (prefill)", bill.input_usd_per_hour, 1),
        ("Cached input", "attention of new tokens to cached prompts", bill.cached_usd_per_hour, 2),
        ("Output", "writing tokens (decode)", bill.output_usd_per_hour, 3),
        ("Headroom", "room that the promise keeps free beside the work", bill.headroom_usd_per_hour, 6),
        ("Idle", "replicas that a load below the peak has no use for", bill.idle_usd_per_hour, 4),
        ("Spare", "replicas kept for the day one fails", bill.spare_usd_per_hour, 5),
    )
    shown = cents_that_add_up([value for _, _, value, _ in named], bill.total_usd_per_hour)
    total = bill.total_usd_per_hour
    return Money(
        lines=tuple(
            BillLine(
                name=name,
                what=what,
                usd_per_hour=text,
                share=percent(value / total) if total else "",
                width_percent=round(100 * value / total, 2) if total else 0.0,
                colour=colour,
            )
            for (name, what, value, colour), text in zip(named, shown, strict=True)
        ),
        total=cents_that_add_up([total], total)[0],
        month=f"{usd(total * _HOURS_PER_MONTH)} for a month of {_HOURS_PER_MONTH} h, running all the time",
        unit_prices=_unit_prices(bill),
        prices=_price_range(bought),
        quotes=tuple(_quote(each) for each in dict.fromkeys(sized.price for sized in bought)),
        tenants=_tenants(invoice) if invoice else None,
        attributed=tuple(_tenants(each) for each in attributed),
        purchase=_purchase(purchase) if isinstance(purchase, Purchase) else purchase,
        alternatives=_alternatives(other) if other else None,
        units=_units(other) if other and other.units else None,
        service=_service(other.service) if other and other.service else None,
    )


def _alternatives(other: Alternatives) -> Table:
    rows = [
        (
            way.name,
            "not known" if way.usd_per_month is None else usd(way.usd_per_month),
            "" if way.break_even_utilization_fraction is None else percent(way.break_even_utilization_fraction),
            "" if way.break_even_tokens_per_month is None else exact(round(way.break_even_tokens_per_month)),
            way.note,
        )
        for way in other.ways
    ]
    return Table(
        head=("The same work", "A month", "Break-even, busy", "Break-even, tokens a month", "How"),
        rows=tuple(rows),
        numeric=frozenset({1, 2, 3}),
        caption="Owned: busier than that, it costs less than renting busy hours. API: above that, hosting costs less",
    )


def _service(found: Service) -> Table:
    """Line by line; what has no price says so, and so does the total then."""
    rows = [
        (
            line.name.replace("_", " "),
            UNKNOWN if line.usd_per_month is None else f"${line.usd_per_month:,.2f}",
            "" if line.share_fraction is None else percent(line.share_fraction),
            "stays" if line.stays_with_an_api else "goes",
        )
        for line in found.lines
    ]
    total = found.total_usd_per_month
    rows.append(("Together", UNKNOWN if total is None else f"${total:,.2f}", "", ""))
    if found.usd_per_request is not None:
        rows.append(("A request of it", usd(found.usd_per_request), "", ""))
    unsaid = f"Not said: {', '.join(name.replace('_', ' ') for name in found.unsaid)}" if found.unsaid else ""
    return Table(
        head=("The whole service", "A month", "Share", "With an API"),
        rows=tuple(rows),
        numeric=frozenset({1, 2}),
        caption=unsaid,
    )


def _units(other: Alternatives) -> Table:
    rows = tuple(
        (unit.name, usd(unit.cost_usd), "" if unit.busy_usd is None else usd(unit.busy_usd), unit.formula)
        for unit in other.units
    )
    return Table(
        head=("One unit of work", "Whole bill", "Its work alone", "Worked out"),
        rows=rows,
        numeric=frozenset({1, 2}),
        caption="The whole bill has headroom, idle time and spare replicas in it",
    )


def _tenants(invoice: TenantInvoice) -> Table:
    """Every tenant and what nobody used; the second and third columns add up to the invoice, to the cent."""

    def dollars(usd: float) -> str:
        return f"${usd:,.2f}"

    shown = invoice.tenants[:_MOST_TENANTS]
    rest = invoice.tenants[_MOST_TENANTS:]
    rows = [
        (
            share.tenant,
            exact(share.request_count),
            dollars(share.busy_usd),
            dollars(share.loaded_usd),
            UNKNOWN if share.loaded_usd_per_request is None else usd(share.loaded_usd_per_request),
        )
        for share in shown
    ]
    if rest:
        rows.append(
            (
                f"{exact(len(rest))} others",
                exact(sum(share.request_count for share in rest)),
                dollars(sum(share.busy_usd for share in rest)),
                dollars(sum(share.loaded_usd for share in rest)),
                "",
            )
        )
    rows += [
        ("Headroom", "", dollars(invoice.headroom_usd), "shared out", ""),
        ("Idle", "", dollars(invoice.idle_usd), "shared out", ""),
        ("Spare", "", dollars(invoice.spare_usd), "shared out", ""),
        ("Invoice", "", dollars(invoice.total_usd), dollars(invoice.total_usd), ""),
    ]
    return Table(
        head=(_PAYER[invoice.by], "Requests seen", "Its work, a month", "With all lines", "A request of it"),
        rows=tuple(rows),
        numeric=frozenset({1, 2, 3, 4}),
        caption="Work by GPU time; headroom, idle and spare by what each takes at the peak",
    )


def _purchase(purchase: Purchase) -> Table:
    rows = [
        (line.name.replace("_", " "), digits(line.mean_gpu_count), f"{usd(line.usd_per_hour)}/h")
        for line in purchase.lines
    ]
    rows.append(("Together", "", f"{usd(purchase.total_usd_per_hour)}/h"))
    rows += [(f"A GPU hour {term_of(each, purchase)}", "", _term_price(each)) for each in purchase.terms]
    rows += [(f"A GPU hour {term.replace('_', ' ', 1)}", "", "no published price") for term in purchase.unknown_terms]
    return Table(
        head=("If the fleet follows the hour", "GPUs on average", "Costs"),
        rows=tuple(rows),
        numeric=frozenset({1, 2}),
        caption=f"{_rule(purchase)}{_dearer(purchase)}Reckoned from {_hours(purchase)}, not replayed",
    )


def _term_price(each: TermPrice) -> str:
    """With the range of published prices and the date."""
    low, high = each.low_usd_per_gpu_hour, each.high_usd_per_gpu_hour
    if low is None or high is None or each.source == "scenario":
        return f"{usd(each.usd_per_gpu_hour)} (your price)"
    spread = usd(low) if low == high else f"{usd(low)} to {usd(high)}"
    return f"{usd(each.usd_per_gpu_hour)} ({spread}, {each.as_of or 'date unknown'})"


def _rule(purchase: Purchase) -> str:
    """The quantile rule in words."""
    share = purchase.commit_from_fraction
    return "" if share is None else f"A commitment pays for GPUs needed {percent(share)} of the hours or more. "


def _dearer(purchase: Purchase) -> str:
    return "".join(f"{line[:1].upper()}{line[1:]}. " for line in (*spot_lines(purchase), *dearer_lines(purchase)))


def _hours(purchase: Purchase) -> str:
    if purchase.described:
        return f"the {exact(purchase.hour_count)} hours described under buy"
    return f"the busiest minute of each of {exact(purchase.hour_count)} hours"


_UNITS = {
    "usd_per_million_input_tokens": ("Per million input tokens", "no input tokens in the replay"),
    "usd_per_million_cached_tokens": ("Per million cached tokens", "nothing came from the cache"),
    "usd_per_million_output_tokens": ("Per million output tokens", "no output tokens in the replay"),
    "usd_per_request": ("Per request", "no request in the replay"),
}


def _unit_prices(bill: Bill) -> Table:
    """Each unit by its work alone and with its part of what nobody used; what there was none of says so."""
    known = {unit.name: unit for unit in units_of(bill)}
    rows = [
        (name, usd(known[key].busy_usd), usd(known[key].loaded_usd)) if key in known else (name, why, "")
        for key, (name, why) in _UNITS.items()
    ]
    if bill.usd_per_million_output_tokens_loaded is not None:
        rows.append(("Whole bill over output tokens, per million", "", usd(bill.usd_per_million_output_tokens_loaded)))
    return Table(
        head=("Price of work", "Its work alone", "With all lines"), rows=tuple(rows), numeric=frozenset({1, 2})
    )


def _price_range(bought: Sequence[Sized]) -> Table:
    kinds = {sized.price.gpu: sized for sized in bought}
    counts = {gpu: sum(each.gpu_count for each in bought if each.price.gpu == gpu) for gpu in kinds}

    def row(name: str, each: Callable[[Sized], float]) -> tuple[str, ...]:
        cells = ((f"{usd(each(sized))}", f"{usd(each(sized) * counts[gpu])}/h") for gpu, sized in kinds.items())
        return (name, *(cell for pair in cells for cell in pair))

    several = len(kinds) > 1
    head = [
        cell
        for gpu, count in counts.items()
        for cell in (f"Per {gpu}" if several else "Per GPU", f"{exact(count)} {gpu if several else 'GPUs'}")
    ]
    rows = [
        row("Lowest published", lambda sized: sized.price_low_usd_per_gpu_hour),
        row("Used here", lambda sized: sized.price.price_usd_per_gpu_hour),
        row("Highest published", lambda sized: sized.price_high_usd_per_gpu_hour),
    ]
    if all(sized.price.source == "scenario" for sized in bought):
        # Nobody published it, and it has no range.
        rows = [row("Your price", lambda sized: sized.price.price_usd_per_gpu_hour)]
    return Table(
        head=("Price of a GPU hour", *head),
        rows=tuple(rows),
        numeric=frozenset(range(1, 1 + len(head))),
    )


def _quote(price: GpuPrice) -> Table:
    rows = (
        ("GPU", price.gpu),
        ("Provider", f"{price.provider} ({price.provider_class})" if price.provider_class else price.provider),
        ("Region", price.region or "not stated"),
        ("Term", price.term.replace("_", " ")),
        ("Price as of", price.as_of or "date unknown"),
        ("Source", price.source or "not stated"),
    )
    note = (("Note", price.note),) if price.note else ()
    return Table(head=("The price used", ""), rows=rows + note)
