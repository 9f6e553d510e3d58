"""Sixth and seventh sections: what was assumed, how wrong it may be, and how to repeat it."""

from collections.abc import Mapping, Sequence

import yaml

from tokenfleet.app.report.charts import Table
from tokenfleet.app.report.naming import replica_name
from tokenfleet.app.report.words import digits, exact, percent, usd
from tokenfleet.domain.outlook import Confidence, SensitivityCase
from tokenfleet.domain.plan import Plan
from tokenfleet.domain.records import dataclass
from tokenfleet.domain.replica import EngineSettings, ErrorBand, ReplicaPhysics


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions:
    """The sixth section."""

    bands: Table | None
    band_sentence: str
    evidence: tuple[str, ...]
    stated: tuple[str, ...]
    sources: Table
    engines: tuple[Table, ...]
    sensitivity: Table | None
    likely: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Repeat:
    """The seventh section."""

    command: str
    facts: Table | None
    resolved_yaml: str


def assumed(plan: Plan) -> Assumptions:
    """What ``plan`` rests on."""
    bought = plan.fleets
    replicas = [sized.replica for sized in bought] or list(plan.question.candidates)
    # The second section of a feasible plan tells of anomalies where fleets are compared.
    told = plan.anomalies if bought else ()
    bands = [sized.replica.band for sized in bought]
    evidence = dict.fromkeys(replica.band.evidence for replica in replicas)
    return Assumptions(
        bands=_bands(replicas),
        band_sentence=_band_sentence(max(bands, key=lambda band: band.step_time_factor, default=None)),
        evidence=tuple(evidence),
        stated=tuple(
            dict.fromkeys((*(each for each in plan.assumptions if each not in told), *plan.question.model.notes))
        ),
        sources=_sources(plan),
        engines=tuple(_engine(each) for each in dict.fromkeys(sized.replica.deployment.engine for sized in bought)),
        sensitivity=_sensitivity(plan.sensitivity) if plan.sensitivity else None,
        likely=_likely(plan.confidence) if plan.confidence else "",
    )


def _band_sentence(band: ErrorBand | None) -> str:
    if band is None:
        return "Predicted times carry these factors: multiply and divide by them for the 90 % interval."
    factor = band.step_time_factor
    return (
        f"The time of an engine step may be {digits(factor)} times longer or shorter than predicted (90 % interval). "
        "The ranges of this page come from replaying the same traffic at both ends, not from scaling the result."
    )


def _bands(replicas: list[ReplicaPhysics]) -> Table | None:
    rows = tuple(
        (replica_name(replica.deployment), f"× ÷ {digits(replica.band.step_time_factor)}", replica.band.evidence)
        for replica in replicas
    )
    return Table(head=("Replica", "Step time", "Evidence"), rows=rows) if rows else None


def _sensitivity(cases: Sequence[SensitivityCase]) -> Table:
    """Each assumption changed on its own, what moves the bill most first; bars as wide as the bill."""
    ordered = sorted(cases, key=lambda case: -(case.price_usd_per_hour or float("inf")))
    dearest = max((case.price_usd_per_hour or 0.0 for case in cases), default=0.0)
    rows = tuple(
        (
            f"{case.assumption} {case.change}",
            "kept" if case.kept else case.note or f"breaks {', '.join(case.broken)}",
            "no count tried" if case.replica_count is None else _counts(case),
            "unknown" if case.price_usd_per_hour is None else f"{usd(case.price_usd_per_hour)}/h",
            "" if case.price_usd_per_hour is None else "█" * max(1, round(20 * case.price_usd_per_hour / dearest)),
        )
        for case in ordered
    )
    return Table(
        head=("If wrong", "The fleet as planned", "Replicas needed", "Costs", ""),
        rows=rows,
        numeric=frozenset({2, 3}),
        caption="Each case replayed on its own, the spare replicas gone",
    )


def _counts(case: SensitivityCase) -> str:
    """``7``, or ``3 + 4`` pool by pool."""
    return " + ".join(exact(count) for count in case.pool_replica_count or (case.replica_count or 0,))


def _likely(found: Confidence) -> str:
    least = "at least " if found.at_least else ""
    slower = found.breaking_step_factor
    until = "as predicted and no slower" if slower < 1.005 else f"{digits(slower)} times as long as predicted"
    return (
        f"The promise holds with a probability of {least}{percent(found.probability_fraction)} if step times are all "
        f"that is wrong: it is kept while steps take {until}. The factor is taken to be log-normal, with nine tenths "
        f"of it inside {digits(found.band_factor)} either way."
    )


def _sources(plan: Plan) -> Table:
    model = plan.question.model
    rows = [("Model", model.name, model.source or "not stated")]
    prices = {price.gpu: price for price in plan.question.prices}
    used = {sized.price.gpu: sized.price for sized in plan.fleets}
    prices = {**used, **{gpu: price for gpu, price in prices.items() if gpu not in used}}
    rows += [
        (f"Price of {price.gpu}", f"{price.provider}, {price.as_of or 'date unknown'}", price.source or "not stated")
        for price in prices.values()
    ]
    return Table(head=("Fact", "What", "Source"), rows=tuple(rows))


def _engine(engine: EngineSettings) -> Table:
    def yes(value: bool) -> str:
        return "on" if value else "off"

    limit = engine.context_limit_tokens
    return Table(
        head=("Engine setting", engine.name),
        rows=(
            ("Tokens in a step, at most", exact(engine.max_batched_tokens)),
            ("Sequences at once, at most", exact(engine.max_sequence_count)),
            ("KV block", f"{exact(engine.block_tokens)} tokens"),
            ("GPU memory it may use", percent(engine.memory_utilization_fraction)),
            ("Prefix cache", yes(engine.prefix_caching)),
            ("Chunked prefill", yes(engine.chunked_prefill)),
            ("Asynchronous scheduling", yes(engine.async_scheduling)),
            *_chosen_rules(engine),
            ("Context limit", "that of the model" if limit is None else f"{exact(limit)} tokens"),
        ),
        numeric=frozenset({1}),
    )


def _chosen_rules(engine: EngineSettings) -> list[tuple[str, str]]:
    """Settings that are off unless somebody asks for them."""
    rows = []
    if engine.long_prefill_tokens is not None:
        rows.append(("One prompt's share of a step, at most", f"{exact(engine.long_prefill_tokens)} tokens"))
    if engine.scheduling == "priority":
        rows.append(("Scheduling", "by priority"))
    if engine.preemption == "swap":
        rows.append(("Preempted decodes wait in host memory", f"{exact(engine.swap_bytes >> 20)} MiB for each GPU"))
    if engine.front_end == "serial":
        rows.append(("Front end", "one thread for all requests"))
    if engine.prefill_decode_interval_count:
        rows.append(("Rounds of decode between prefills", exact(engine.prefill_decode_interval_count)))
    if engine.receive_interval_count > 1:
        rows.append(("Rounds of decode between looks for requests", exact(engine.receive_interval_count)))
    if engine.speculation is not None:
        kept = percent(engine.speculation.acceptance_fraction)
        drafted = f"{exact(engine.speculation.draft_token_count)} tokens a step, {kept} kept"
        rows.append(("Speculative decoding", drafted))
    return rows


def flattened(tree: Mapping[str, object], above: str = "") -> list[tuple[str, object]]:
    """Leaves of nested mappings with dotted names, in order."""
    leaves: list[tuple[str, object]] = []
    for key, value in tree.items():
        name = f"{above}.{key}" if above else str(key)
        leaves += flattened(value, name) if isinstance(value, Mapping) else [(name, value)]
    return leaves


def repeat(plan: Plan, resolved: Mapping[str, object], command: str) -> Repeat:
    """How to get the same bytes again."""
    facts = [
        (name.replace("_", " "), ", ".join(map(str, value)) if isinstance(value, (list, tuple)) else str(value))
        for name, value in flattened({key: value for key, value in resolved.items() if key != "scenario"})
        if value is not None
    ]
    if not any(name == "seed" for name, _ in facts):
        facts.insert(0, ("seed", str(plan.question.seed)))
    return Repeat(
        command=command,
        facts=Table(head=("Made from", ""), rows=tuple(facts)) if facts else None,
        resolved_yaml=yaml.safe_dump(
            _plain(resolved.get("scenario", resolved)), sort_keys=False, allow_unicode=True, width=100
        ),
    )


def _plain(value: object) -> object:
    """``value`` in types that YAML writes; unknown stays visible as ``unknown``."""
    if isinstance(value, Mapping):
        return {str(key): _plain(each) for key, each in value.items()}
    if isinstance(value, (list, tuple, set, frozenset)):
        return [_plain(each) for each in value]
    if value is None:
        return "unset"
    return value if isinstance(value, (str, int, float, bool)) else str(value)
