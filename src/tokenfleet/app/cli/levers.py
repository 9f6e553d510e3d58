"""``tokenfleet levers``: what each way to save would save."""

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

import click

from tokenfleet.app.cli.face import Face, face_options

if TYPE_CHECKING:
    from tokenfleet.app.executor import Executor
    from tokenfleet.app.levers import Lever, Levers
    from tokenfleet.domain.plan import Sized
    from tokenfleet.domain.slo import SloResult
    from tokenfleet.planner import PricedPools

_TOGETHER = "proved together: the whole demand on all pools, the spare replicas of each gone"


@click.command("levers", short_help="What each way to save would save, re-planned, with its price in latency.")
@click.argument("scenario", type=click.Path(path_type=Path))
@click.option("--smaller-model", metavar="NAME", help="Also plan for this model.")
@click.option(
    "--routed-share",
    metavar="SHARE",
    help="Share of requests that go to it, where the log has no tiers. [default: 50%]",
)
@click.option("--acceptance", metavar="SHARE", help="How often a drafted token is kept: plans speculative decoding.")
@click.option("--draft-tokens", metavar="TOKENS", help="Drafted for each sequence in each step. [default: 3]")
@click.option("--output-cap", metavar="TOKENS", help="Most output tokens. [default: their 95th percentile]")
@click.option("--prompt-cut", metavar="SHARE", help="Share of the unshared prompt tokens to cut. [default: 30%]")
@click.option(
    "--executor",
    type=click.Choice(["local", "ray"]),
    default="local",
    show_default=True,
    help="Where replays run ahead: threads here, or the workers of a Ray cluster. The answer is the same.",
)
@click.option("--no-cache", is_flag=True, help="Replay everything anew, and keep nothing for the next plan.")
@face_options
@click.pass_obj
def command(
    face: Face,
    scenario: Path,
    smaller_model: str | None,
    routed_share: str | None,
    acceptance: str | None,
    draft_tokens: str | None,
    output_cap: str | None,
    prompt_cut: str | None,
    executor: "Executor",
    no_cache: bool,
) -> int:
    """Plan SCENARIO, then again with each lever pulled alone: what it saves, what it does to latency, what to check.

    Tried: fp8 and int4 weights, fp8 KV cache, a smaller model if named, for all requests and for some, a cap on
    outputs, shorter prompts, another router, speculation at a measured acceptance, the prefix cache and the batching
    window where the scenario fixes them, and one- and three-year reservations. Pools that SCENARIO names are counted
    anew with each lever in those of them where it saves a replica.
    """
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.compose import kept_replays
    from tokenfleet.app.levers import Options, levers
    from tokenfleet.app.scenario import checked, lines_of, load_scenario, placed
    from tokenfleet.app.spreading import spread_replays

    face.action = "levers"
    asked = load_scenario(scenario)
    given = {
        "smaller_model": smaller_model,
        "output_cap": output_cap,
        "prompt_cut": prompt_cut,
        "routed_share": routed_share,
        "acceptance": acceptance,
        "draft_tokens": draft_tokens,
    }
    values = {name: value for name, value in given.items() if value is not None}
    options = checked(Options, values, lambda path: f"--{path[0]}".replace("_", "-"))
    with (
        shown(face) as teller,
        placed(lines_of(scenario)),
        spread_replays(executor, kept_replays(teller, cache=not no_cache)) as replay,
    ):
        found = levers(asked, options, teller, replay)
    if face.json:
        face.document(_document(found))
    else:
        _tell(face, found)
    return 0


def _document(found: "Levers") -> dict[str, object]:
    return {
        "base": _fleet(found.base),
        "base_pools": _pools(found.base_pools),
        "base_pools_slo": _values(found.base_pools),
        "base_usd_per_hour": found.base_usd_per_hour,
        "why_not": found.why_not or None,
        "levers": [
            {
                "name": lever.name,
                "change": lever.change,
                "fleet": _fleet(lever.sized),
                "beside": _fleet(lever.beside),
                "pools": _pools(lever.pools),
                "pools_slo": _values(lever.pools),
                "price_usd_per_hour": lever.price_usd_per_hour,
                "saving_fraction": found.saving_fraction(lever),
                "risk": lever.risk,
                "why_not": lever.why_not or None,
                "notes": list(lever.notes),
            }
            for lever in found.levers
        ],
    }


def _fleet(sized: "Sized | None") -> dict[str, object] | None:
    if sized is None:
        return None
    deployment = sized.replica.deployment
    return {
        "model": deployment.model,
        "gpu": deployment.gpu,
        "gpu_count": sized.gpu_count,
        "replica_count": sized.replica_count,
        "tensor_parallel": deployment.layout.tensor_parallel,
        "precision": deployment.precision,
        "kv_dtype": deployment.kv_precision,
        "price_usd_per_hour": sized.price_usd_per_hour,
        "slo": {result.name: result.predicted for result in sized.slo},
    }


def _pools(found: "PricedPools | None") -> list[dict[str, object]]:
    if found is None:
        return []
    return [
        {"who": name, **(_fleet(sized) or {}), "beside": sized.beside}
        for name, sized in zip(found.names, found.fleets, strict=True)
    ]


def _values(found: "PricedPools | None") -> dict[str, float | None] | None:
    """What users of all pools see, clause by clause."""
    return None if found is None else {result.name: result.predicted for result in found.slo}


def _tell(face: Face, found: "Levers") -> None:
    from tokenfleet.app.quantities import shown_usd
    from tokenfleet.app.summary import replica_name

    if found.base_pools is not None:
        face.blocks([("Now", [*_pool_lines(found.base_pools), _latency(found.base_pools.slo, ()), _TOGETHER])])
    elif found.base is None:
        face.blocks([("Now", [f"no fleet keeps the promise: {found.why_not}"])])
    else:
        base = found.base
        said = f"{base.replica_count} x {replica_name(base)}, {shown_usd(base.price_usd_per_hour)}/h"
        face.blocks([("Now", [said, _latency(base.slo, ())])])
    for lever in found.levers:
        face.blocks([(_percent(found.saving_fraction(lever)), _lines(lever, found))])


def _percent(saving: float | None) -> str:
    # Rounded first, so that nothing is not called minus nothing.
    return "-" if saving is None else f"{-round(saving, 2) + 0.0:+.0%}"


def _lines(lever: "Lever", found: "Levers") -> list[str]:
    from tokenfleet.app.quantities import shown_usd
    from tokenfleet.app.summary import replica_name

    lines = [f"{lever.name}: {lever.change}"]
    if lever.pools is not None:
        pools = _pool_lines(lever.pools, found.base_pools)
        return [*lines, *lever.notes, *pools, _latency(lever.pools.slo, found.base_slo), f"check: {lever.risk}"]
    if lever.sized is None:
        return [*lines, *lever.notes, lever.why_not or "no fleet keeps the promise"]
    for sized in lever.fleets:
        lines.append(f"{sized.replica_count} x {replica_name(sized)}, {shown_usd(sized.price_usd_per_hour)}/h")
        lines.append(_latency(sized.slo, found.base_slo))
    return [*lines, f"check: {lever.risk}"]


def _pool_lines(found: "PricedPools", base: "PricedPools | None" = None) -> list[str]:
    """Every pool with what it costs; of named ones those alone that are not as in ``base``, each with its model."""
    from tokenfleet.app.quantities import shown_usd
    from tokenfleet.app.summary import replica_name

    is_named = found.system.way is not None
    before = {} if base is None or not is_named else dict(zip(base.names, map(_named_words, base.fleets), strict=True))
    lines = []
    for name, sized in zip(found.names, found.fleets, strict=True):
        said = _named_words(sized) if is_named else f"{sized.replica_count} x {replica_name(sized)}"
        if before.get(name) != said:
            price = f"beside {sized.beside}" if sized.beside else f"{shown_usd(sized.price_usd_per_hour)}/h"
            lines.append(f"{name}: {said}, {price}")
    pools = "1 pool" if len(found.names) == 1 else f"{len(found.names)} pools"
    return [*lines, f"{pools}, {shown_usd(found.price_usd_per_hour)}/h"]


def _named_words(sized: "Sized") -> str:
    from tokenfleet.app.summary import replica_name

    return f"{sized.replica_count} x {replica_name(sized)} of {sized.replica.deployment.model}"


def _latency(slo: "Sequence[SloResult]", base: "Sequence[SloResult]") -> str:
    from tokenfleet.app.quantities import shown_duration
    from tokenfleet.app.slo_words import spoken

    before = {result.name: result.predicted for result in base}
    parts = []
    for result in slo:
        if result.unit == "s" and result.predicted is not None:
            was = before.get(result.name)
            parts.append(
                f"{spoken(result.name)} {f'{shown_duration(was)} -> ' if was else ''}{shown_duration(result.predicted)}"
            )
    return ", ".join(parts) or "no latency is promised, only when work is done"
