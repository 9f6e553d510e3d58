"""The sizes of pools on one page: what to buy of each, whether the promise holds, how full each will be."""

from collections.abc import Iterable, Sequence

from tokenfleet.app.pool_sizes import PoolSizes, SizedPool, fullness
from tokenfleet.app.quantities import shown_duration, shown_usd
from tokenfleet.app.report.charts import FIRST, FIRST_SOFT, FOURTH, SECOND, Chart, Figure, Table, axis, layout, plain
from tokenfleet.app.report.decision import predicted, promise_name
from tokenfleet.app.report.words import UNKNOWN, exact, percent
from tokenfleet.app.report.words import promise as limit
from tokenfleet.app.simulate_words import fleet_name
from tokenfleet.app.summary import verdict
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.slo import SloResult

_HOURS_PER_MONTH = 730
_PER_POOL_PX, _FRAME_PX = 46, 110


@dataclass(frozen=True, slots=True, kw_only=True)
class SizesPage:
    """All sections of the page."""

    lead: str
    stages: str
    promise: Table
    sizes: Table | None
    """``None`` where no counts keep the promise."""
    why: tuple[str, ...]
    """How full each pool is, and why some are fuller."""
    charts: tuple[Chart, ...]
    assumptions: tuple[str, ...]


def sizes_page(found: PoolSizes) -> SizesPage:
    """What the page of an answer says, feasible or not."""
    return SizesPage(
        lead=_lead(found),
        stages=found.stages,
        promise=_promise(found),
        sizes=_sizes(found) if found.pools else None,
        why=tuple(fullness(found.pools)),
        charts=(_full(found.pools),) if any(pool.filled for pool in found.pools) else (),
        assumptions=(*found.assumptions, f"{exact(found.replayed_count)} counts were replayed, on the whole demand."),
    )


def _lead(found: PoolSizes) -> str:
    if not found.pools:
        return "No counts up to 64 times those of the scenario keep the promise; what the largest tried make of it:"
    gpus = sum(pool.gpu_count for pool in found.pools)
    usd = found.price_usd_per_hour
    cost = "no price is known for all of them"
    if usd is not None:
        cost = f"{shown_usd(usd)} an hour, {shown_usd(usd * _HOURS_PER_MONTH)} a month of {_HOURS_PER_MONTH} h"
    spare = any(pool.spare_count for pool in found.pools)
    gone = " with the spare replicas of every pool gone" if spare else ""
    pools = "1 pool keeps" if len(found.pools) == 1 else f"{exact(len(found.pools))} pools keep"
    return f"{exact(gpus)} GPUs in {pools} the promise{gone}: {cost}."


def _promise(found: PoolSizes) -> Table:
    """Each clause, at the peak and over all."""
    whole = {each.name: each for each in found.whole}
    rows = [
        (
            promise_name(each.name),
            f"≤ {limit(each.promised, each.unit)}",
            predicted(each),
            _over_all(whole.get(each.name)),
            verdict(each),
        )
        for each in found.peak
    ]
    start_s, end_s = found.peak_window_s
    return Table(
        head=(
            "Promise",
            "Promised",
            f"Busiest {shown_duration(end_s - start_s)}",
            "All requests",
            "Verdict at the peak",
        ),
        rows=tuple(rows),
        numeric=frozenset({1, 2, 3}),
        caption=f"The peak begins at {shown_duration(start_s)}" if start_s else "",
    )


def _over_all(result: SloResult | None) -> str:
    return UNKNOWN if result is None else predicted(result)


def _sizes(found: PoolSizes) -> Table:
    rows: list[tuple[str, ...]] = [
        (
            pool.named.name,
            pool.named.does,
            pool.named.model.name,
            fleet_name(pool.named.fleet.groups[0]),
            exact(pool.carrying_count),
            exact(pool.spare_count),
            exact(pool.gpu_count),
            _usd(pool.price_usd_per_hour),
        )
        for pool in found.pools
    ]
    gpus = sum(pool.gpu_count for pool in found.pools)
    rows.append(("Together", "", "", "", "", "", exact(gpus), _usd(found.price_usd_per_hour)))
    return Table(
        head=("Pool", "Does", "Model", "Replicas", "Carry", "Spare", "GPUs", "US dollars an hour"),
        rows=tuple(rows),
        numeric=frozenset({4, 5, 6, 7}),
    )


def _usd(usd: float | None) -> str:
    return UNKNOWN if usd is None else shown_usd(usd)


def _full(pools: Sequence[SizedPool]) -> Chart:
    """Each pool as a bar of all it could do: on average, more at the peak, kept free, spare."""
    known = [(pool.named.name, pool.filled) for pool in pools if pool.filled is not None]
    names = [name for name, _ in known]
    parts: list[tuple[str, str, list[float]]] = [
        ("on average", FIRST, [how.mean_fraction for _, how in known]),
        ("more at the peak", FIRST_SOFT, [how.peak_fraction - how.mean_fraction for _, how in known]),
        ("free at the peak", FOURTH, [max(0.0, 1.0 - how.peak_fraction - how.spare_fraction) for _, how in known]),
        ("spare", SECOND, [min(how.spare_fraction, max(0.0, 1.0 - how.peak_fraction)) for _, how in known]),
    ]
    rows = tuple((name, *(percent(part[index]) for _, _, part in parts)) for index, name in enumerate(names))
    base = layout(
        axis("of what all replicas do with a queue that never empties", rangemode="tozero", tickformat=".0%"),
        {"autorange": "reversed", "automargin": True, "type": "category"},
    )
    return Chart(
        key="filled",
        title="How full each pool is",
        note="What is neither taken nor spare must be free when somebody comes. Work that can wait needs less of it.",
        figure={
            "data": list(_bars(names, parts)),
            "layout": {**base, "barmode": "stack", "legend": {"traceorder": "normal"}},
        },
        height_px=_FRAME_PX + _PER_POOL_PX * len(names),
        wide=True,
        table=Table(
            head=("Pool", *(label.capitalize() for label, _, _ in parts)),
            rows=rows,
            numeric=frozenset(range(1, len(parts) + 1)),
        ),
    )


def _bars(names: list[str], parts: Iterable[tuple[str, str, list[float]]]) -> Iterable[Figure]:
    for label, colour, shares in parts:
        yield {
            "type": "bar",
            "orientation": "h",
            "name": label,
            "y": names,
            "x": plain(shares),
            "marker": {"color": colour},
            "hovertemplate": f"%{{y}}: %{{x:.0%}} {label}<extra></extra>",
        }
