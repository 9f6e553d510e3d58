"""From a plan or a profile to the bytes of the page."""

import base64
import gzip
import json
import os
import zlib
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING

from tokenfleet.app.apart_words import apart_lines
from tokenfleet.app.report.assumptions import assumed, repeat
from tokenfleet.app.report.charts import Absent, Chart
from tokenfleet.app.report.decision import decide, peak_rate_per_s
from tokenfleet.app.report.demand import describe
from tokenfleet.app.report.money import account
from tokenfleet.app.report.why import explain, rejected_table
from tokenfleet.app.report.worst_day import replayed
from tokenfleet.app.ways_words import ways_lines
from tokenfleet.app.whole_files import home_cache, write_whole
from tokenfleet.domain.plan import Plan
from tokenfleet.domain.trace import Workload

if TYPE_CHECKING:
    from jinja2 import BytecodeCache
    from jinja2.bccache import Bucket

    from tokenfleet.app.pool_sizes import PoolSizes
    from tokenfleet.app.pools_run import SimulatedPools
    from tokenfleet.app.scaling_pools import ScaledPools
    from tokenfleet.app.simulate_run import Simulated
    from tokenfleet.planner.scaling import ScalingComparison


def write_report(plan: Plan, workload: Workload, resolved: Mapping[str, object], path: Path, *, command: str) -> None:
    """Write the report of ``plan`` to ``path``, whole or not at all.

    Args:
        plan: The answer, feasible or not.
        workload: The demand that was planned for.
        resolved: What the plan rests on. Key ``scenario`` (as understood) is shown as YAML, every other key (versions,
            seed, digests, price dates) by name.
        path: The file to write; its folder must exist. An older report is replaced.
        command: What a person types to get this plan again.

    Raises:
        OSError: The file cannot be written; nothing half-written stays behind.
    """
    text = render_report(plan, workload, resolved, command=command)
    write_whole(text, path)


def render_report(plan: Plan, workload: Workload, resolved: Mapping[str, object], *, command: str) -> str:
    """The report of ``plan`` as HTML; arguments as in :func:`write_report`."""
    sections = _sections(plan, workload)
    charts = list(_charts(sections.values()))
    return _filled(
        "report.html.j2",
        charts,
        name=plan.question.name,
        sections=sections,
        rejected=rejected_table(plan.rejected),
        apart=() if plan.apart is None else apart_lines(plan.apart, plan.one_fleet),
        ways=ways_lines(plan),
        repeat=repeat(plan, resolved, command),
    )


def render_profile(workload: Workload, *, name: str, old: Workload | None = None) -> str:
    """The page of a profile as HTML.

    Args:
        workload: The traffic.
        name: What the page is called: the files that were read.
        old: An older profile to hold it against.
    """
    from tokenfleet.app.report.traffic import traffic_page

    page = traffic_page(workload, old)
    return _filled("profile.html.j2", [each for each in page.charts if isinstance(each, Chart)], name=name, page=page)


def render_timeline(run: "Simulated", *, command: str) -> str:
    """The page of a simulation as HTML; ``command`` is what a person types to get it again."""
    from tokenfleet.app.report.timeline import timeline_page

    page = timeline_page(run)
    charts = [each for each in page.charts if isinstance(each, Chart)]
    return _filled("timeline.html.j2", charts, name=run.name, page=page, command=command)


def render_scaling(
    found: "ScalingComparison", *, name: str, advice: Sequence[str], notes: Sequence[str], command: str
) -> str:
    """The page of a comparison of ways to scale as HTML.

    Args:
        found: The comparison.
        name: Of the scenario.
        advice: The best way, and what follows from it.
        notes: What was taken for granted.
        command: What a person types to get it again.
    """
    from tokenfleet.app.report.scaling import scaling_page

    pages = [scaling_page(found)]
    return _filled("scaling.html.j2", pages[0].charts, name=name, pages=pages, lead=[*advice, *notes], command=command)


def render_scaled_pools(found: "ScaledPools", *, name: str, lead: Sequence[str], command: str) -> str:
    """The same of the pools of a plan: each, and what their best ways come to together (``lead``)."""
    from tokenfleet.app.report.scaling import scaling_page
    from tokenfleet.app.scaling_words import advice

    pages = [
        scaling_page(pool.found, pool.name, (*advice(pool.found, pool.setting), pool.cold_start))
        for pool in found.pools
    ]
    charts = [chart for page in pages for chart in page.charts]
    return _filled("scaling.html.j2", charts, name=name, pages=pages, lead=lead, command=command)


def render_pools(run: "SimulatedPools", *, command: str) -> str:
    """The page of a simulation of several pools as HTML; ``command`` is what a person types to get it again."""
    from tokenfleet.app.report.pools import pools_page

    page = pools_page(run)
    charts = [each for each in page.charts if isinstance(each, Chart)]
    return _filled("timeline.html.j2", charts, name=run.name, page=page, command=command)


def render_sizes(found: "PoolSizes", *, command: str) -> str:
    """The page of the sizes of several pools as HTML; ``command`` is what a person types to get it again."""
    from tokenfleet.app.report.sizes import sizes_page

    page = sizes_page(found)
    return _filled("sizes.html.j2", page.charts, name=found.name, page=page, command=command)


def _filled(template: str, charts: Iterable[Chart], **content: object) -> str:
    from jinja2 import Environment, PackageLoader, StrictUndefined

    environment = Environment(
        loader=PackageLoader("tokenfleet.app.report"),
        autoescape=True,
        bytecode_cache=_kept_templates(),
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    return environment.get_template(template).render(
        figures=_script_json({chart.key: chart.figure for chart in charts}),
        plotly_gzip_base64=_plotly(),
        is_chart=lambda each: isinstance(each, Chart),
        **content,
    )


def _kept_templates() -> "BytecodeCache | None":
    """Templates that were compiled before."""
    from jinja2 import FileSystemBytecodeCache

    class Kept(FileSystemBytecodeCache):
        """A full disk costs what is kept, not the report."""

        def dump_bytecode(self, bucket: "Bucket") -> None:
            with suppress(OSError):
                super().dump_bytecode(bucket)

    folder = home_cache() / "templates"
    with suppress(OSError):
        folder.mkdir(parents=True, exist_ok=True)
    return Kept(str(folder)) if os.access(folder, os.W_OK) else None


def _sections(plan: Plan, workload: Workload) -> dict[str, object]:
    """Every section the plan can fill, by name."""
    sections: dict[str, object] = {
        "decision": decide(plan, workload),
        "demand": describe(workload),
        "assumptions": assumed(plan),
    }
    if not plan.fleets:
        return sections
    sections["why"] = explain(plan, peak_rate_per_s(plan, workload))
    if plan.record is not None and plan.degraded is not None:
        sections["worst_day"] = replayed(plan, plan.record, plan.degraded)
    if plan.bill is not None:
        sections["money"] = account(
            plan.bill,
            plan.fleets,
            plan.invoice,
            plan.purchase or plan.purchase_missing,
            plan.alternatives,
            plan.invoices,
        )
    return sections


def _charts(sections: Iterable[object]) -> Iterable[Chart]:
    for section in sections:
        drawn: Iterable[Chart | Absent] = getattr(section, "charts", ())
        yield from (each for each in drawn if isinstance(each, Chart))


def _script_json(value: object) -> str:
    """JSON that may stand inside a ``script`` element: no character of it can end the element."""
    text = json.dumps(value, allow_nan=False, separators=(",", ":"), ensure_ascii=True)
    return text.replace("<", "\\u003c").replace(">", "\\u003e").replace("&", "\\u0026")


@cache
def _plotly() -> str:
    """plotly.js, packed, as base64: 4.8 MB as 2.7 MB. Unpacking costs the browser less than reading the script does.

    Packing takes longer than all the rest of a report, so what was packed is kept; equal scripts pack to equal bytes.
    """
    script = _plotly_script()
    found = script.stat()
    kept = home_cache() / f"plotly-{found.st_size}-{found.st_mtime_ns}"
    with suppress(OSError):
        checksum, _, packed = kept.read_bytes().partition(b"\n")
        if checksum == _checksum(packed):
            return packed.decode("ascii")
    # No time stamp in the header, so that equal plans give equal bytes.
    packed = base64.b64encode(gzip.compress(script.read_bytes(), compresslevel=6, mtime=0))
    with suppress(OSError):
        write_whole(b"\n".join([_checksum(packed), packed]).decode("ascii"), kept)
    return packed.decode("ascii")


def _plotly_script() -> Path:
    """Where the script lies; found without importing plotly, of which a report needs nothing else."""
    package = find_spec("plotly")
    assert package is not None
    assert package.origin is not None
    return Path(package.origin).with_name("package_data") / "plotly.min.js"


def _checksum(content: bytes) -> bytes:
    return f"{zlib.crc32(content):08x}".encode()
