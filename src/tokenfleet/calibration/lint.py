"""Which rows to believe: written rules, each with an id, applied before anything is predicted.

A rule looks at what a row says, at its twins in the data, or at what no hardware can do; never at how far a
prediction is off. A rule *mends* a row, *drops* it (it is not a measurement of its own, or not of what it says),
or *flags* it (predicted and scored, but apart).
"""

from collections import defaultdict
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from statistics import median
from typing import Literal

from tokenfleet.calibration.basis import perfect_step_s
from tokenfleet.calibration.measured import Row
from tokenfleet.calibration.recipes import with_stated_load
from tokenfleet.calibration.schedule import load_of
from tokenfleet.calibration.subject import Refusal, Subject, resolve
from tokenfleet.domain.records import dataclass

Action = Literal["mend", "drop", "flag"]
_TWINS = {"deepseek-ai/deepseek-v3": "deepseek-ai/deepseek-r1"}
"""Names under which one measurement was published twice."""
_Key = tuple[object, ...]
_SPECULATION_RATIO = 1.2
_SHARED_LOADS = 2
_SWEEP_FALL = 1.3
_FEWEST_SWEEPS = 4
_UNSTEADY = 0.25
_WITHHELD = 3.0
_SEVERAL_TOKENS = 64


@dataclass(frozen=True, slots=True)
class Rule:
    """One written rule."""

    rule_id: str
    action: Action
    text: str


RULES = (
    Rule("not-scored", "drop", "the source or its collector says the figure is context only (quality C)"),
    Rule(
        "layout-multiplied",
        "mend",
        "tensor or data parallel degree is the square of the expert degree and equals expert tensor x expert parallel: "
        "two degrees of one group were multiplied, so the degree is divided by it",
    ),
    Rule("whole-system", "drop", "an aggregated row of 12 to 72 ranks on rack-scale parts is a disaggregated system"),
    Rule(
        "duplicate",
        "drop",
        "the same figures to three digits for the same load appear on an earlier row, model twins included",
    ),
    Rule(
        "hidden-speculation",
        "flag",
        "another run of the same model, gpu, engine, precision, layout and loads is 1.2 times slower or more in the "
        "median: the faster one speculates or skips work and no column says so",
    ),
    Rule("sweep-not-monotone", "flag", "TPOT falls by 30 % or more from one concurrency to a higher one of one sweep"),
    Rule(
        "unsteady-build",
        "flag",
        "a quarter or more of the sweeps (four at least) that a source ran with one build are not monotone: what that "
        "build did is not what its columns say",
    ),
    Rule(
        "first-token-withheld",
        "flag",
        "the first token of a closed loop came later than three times all that followed took: the client waited for "
        "something else, such as the end of hidden reasoning, and neither figure is what its column says",
    ),
    Rule(
        "faster-than-hardware", "drop", "below the time in which a perfect part could read the bytes or do 80 % of peak"
    ),
    Rule(
        "impossible-sweep",
        "flag",
        "a closed-loop row of the same run is faster than hardware allows, so its prompts came from a cache at least "
        "in part",
    ),
    Rule("one-sequence", "drop", "batches of llama.cpp under that label behave like one sequence"),
)


@dataclass(frozen=True, slots=True)
class Linted:
    """Rows after the lint."""

    rows: tuple[Row, ...]
    """What is left to predict, mended where a rule says so."""
    flagged: dict[str, str]
    """Row id to the id of the rule that sets it apart."""
    dropped: dict[str, str]
    """Row id to the id of the rule that removed it."""
    mended: dict[str, str]

    def counts(self) -> dict[str, int]:
        """Rows per rule id."""
        found: dict[str, int] = {rule.rule_id: 0 for rule in RULES}
        for fates in (self.dropped, self.flagged, self.mended):
            for rule_id in fates.values():
                found[rule_id] += 1
        return found


def lint(rows: Iterable[Row]) -> Linted:
    """Apply every rule in order.

    Args:
        rows: as read.

    Returns:
        Rows to predict, with the fate of all others.
    """
    dropped: dict[str, str] = {}
    flagged: dict[str, str] = {}
    mended: dict[str, str] = {}
    rows = [with_stated_load(row) for row in rows]
    kept = _drop(rows, "not-scored", lambda row: row.quality == "C", dropped)
    for place, row in enumerate(kept):
        fixed = _divided(row)
        if fixed is not None:
            kept[place] = fixed
            mended[row.row_id] = "layout-multiplied"
    kept = _drop(kept, "whole-system", _is_whole_system, dropped)
    kept = _drop(kept, "one-sequence", lambda row: row.engine == "llama.cpp" and (row.concurrency or 1) > 1, dropped)
    kept = _without_duplicates(kept, dropped)
    kept = _drop(kept, "faster-than-hardware", is_impossible, dropped)
    flagged.update(dict.fromkeys(_beside_impossible(kept, rows, dropped), "impossible-sweep"))
    flagged.update(dict.fromkeys(_speculating(kept), "hidden-speculation"))
    flagged.update({row.row_id: "first-token-withheld" for row in kept if _is_withheld(row)})
    falling, unsteady = _not_monotone(kept)
    flagged.update(dict.fromkeys(unsteady, "unsteady-build"))
    flagged.update(dict.fromkeys(falling, "sweep-not-monotone"))
    return Linted(tuple(kept), flagged, dropped, mended)


def _drop(rows: list[Row], rule_id: str, guilty: Callable[[Row], bool], dropped: dict[str, str]) -> list[Row]:
    kept = []
    for row in rows:
        if guilty(row):
            dropped[row.row_id] = rule_id
        else:
            kept.append(row)
    return kept


def _fact(row: Row, name: str) -> int:
    text = row.facts.get(name, "")
    return int(text) if text.isdigit() else 0


def _divided(row: Row) -> Row | None:
    """The row with its multiplied degree divided, ``None`` when the rule does not apply."""
    degree = row.expert_parallel
    if row.mode != "agg" or degree < 2 or _fact(row, "moe_tp") != degree or _fact(row, "moe_ep") != degree:
        return None
    if row.tensor_parallel == degree * degree:
        return replace(row, tensor_parallel=degree, gpu_count=degree)
    if row.tensor_parallel == 1 and row.attention_data_parallel == degree * degree:
        return replace(row, attention_data_parallel=degree, gpu_count=degree)
    return None


def _is_whole_system(row: Row) -> bool:
    rack = row.gpu.startswith(("gb200", "gb300"))
    return row.mode == "agg" and rack and (row.tensor_parallel or 1) * row.attention_data_parallel > 8


def model_group(row: Row) -> str:
    """Model name with twins under one name: what must be left out together."""
    name = row.model.lower()
    return _TWINS.get(name, name)


def _load_key(row: Row) -> _Key:
    return (row.input_tokens, row.output_tokens, row.concurrency, row.request_rate_per_s)


def _setup_key(row: Row) -> _Key:
    return (
        *(model_group(row), row.gpu, row.engine, row.precision, row.mode, row.tensor_parallel, row.pipeline_parallel),
        *(row.attention_data_parallel, row.expert_parallel, row.gpu_count),
    )


def _run_key(row: Row) -> _Key:
    return (row.source, row.engine_version, row.measured_date, row.facts.get("cfg"), row.workload)


def _without_duplicates(rows: list[Row], dropped: dict[str, str]) -> list[Row]:
    seen: set[_Key] = set()
    kept = []
    for row in rows:
        figures = tuple((one.metric, f"{one.value:.3g}") for one in row.measurements)
        facts = tuple(sorted(pair for pair in row.facts.items() if pair[0].startswith(("prefill_", "decode_"))))
        identity = (row.source, model_group(row), row.gpu, row.engine, row.precision, _load_key(row), figures)
        key = (*identity, row.tensor_parallel, row.attention_data_parallel, facts)
        if figures and key in seen:
            dropped[row.row_id] = "duplicate"
        else:
            seen.add(key)
            kept.append(row)
    return kept


def _beside_impossible(kept: Sequence[Row], rows: Sequence[Row], dropped: dict[str, str]) -> list[str]:
    """Rows of closed-loop runs of which another row was faster than hardware."""
    guilty = {
        (*_setup_key(row)[:5], *_run_key(row))
        for row in rows
        if dropped.get(row.row_id) == "faster-than-hardware" and load_of(row) == "closed_loop"
    }
    return [row.row_id for row in kept if (*_setup_key(row)[:5], *_run_key(row)) in guilty]


def _speculating(rows: Sequence[Row]) -> list[str]:
    """Rows of runs that are far faster than another run of the same setup under the same loads."""
    setups: dict[_Key, dict[_Key, dict[_Key, Row]]] = defaultdict(dict)
    for row in rows:
        if row.mode == "agg" and row.value("tpot") and row.concurrency:
            setups[_setup_key(row)].setdefault(_run_key(row), {})[_load_key(row)] = row
    guilty: list[str] = []
    for runs in setups.values():
        for name, run in runs.items():
            ratios = [_ratio(run, other) for other_name, other in runs.items() if other_name != name]
            if max((ratio for ratio in ratios if ratio is not None), default=0.0) >= _SPECULATION_RATIO:
                guilty.extend(row.row_id for row in run.values())
    return guilty


def _ratio(run: dict[_Key, Row], other: dict[_Key, Row]) -> float | None:
    """How much slower ``other`` is in the median of the loads they share."""
    shared = [load for load in run if load in other]
    if len(shared) < _SHARED_LOADS:
        return None
    return median((other[load].value("tpot") or 0.0) / (run[load].value("tpot") or 1.0) for load in shared)


def _not_monotone(rows: Sequence[Row]) -> tuple[list[str], list[str]]:
    """Rows of sweeps that fall, and all rows of builds whose sweeps often do."""
    sweeps: dict[_Key, list[Row]] = defaultdict(list)
    builds: dict[_Key, list[str]] = defaultdict(list)
    for row in rows:
        if row.mode == "agg" and row.value("tpot") and row.concurrency:
            sweeps[*_setup_key(row), *_run_key(row), row.input_tokens, row.output_tokens].append(row)
            builds[_build_key(row)].append(row.row_id)
    guilty: list[str] = []
    verdicts: dict[_Key, list[bool]] = defaultdict(list)
    for sweep in sweeps.values():
        falls = _falls(sweep)
        if len(sweep) > 1:
            verdicts[_build_key(sweep[0])].append(falls)
        if falls:
            guilty.extend(row.row_id for row in sweep)
    unsteady = [
        row_id
        for build, found in verdicts.items()
        if len(found) >= _FEWEST_SWEEPS and sum(found) >= _UNSTEADY * len(found)
        for row_id in builds[build]
    ]
    return guilty, unsteady


def _is_withheld(row: Row) -> bool:
    first, gap, outputs = row.value("ttft"), row.value("tpot"), row.output_tokens or 0
    if first is None or gap is None or outputs < _SEVERAL_TOKENS or load_of(row) != "closed_loop":
        return False
    return first > _WITHHELD * gap * (outputs - 1)


def _falls(sweep: list[Row]) -> bool:
    highest = 0.0
    for row in sorted(sweep, key=lambda row: row.concurrency or 0):
        seen = row.value("tpot") or 0.0
        if seen * _SWEEP_FALL < highest:
            return True
        highest = max(highest, seen)
    return False


def _build_key(row: Row) -> _Key:
    return (row.source, row.facts.get("origin"), row.engine, row.engine_version)


def is_impossible(row: Row) -> bool:
    """Whether a figure is below the time of perfect hardware."""
    subject = resolve(row)
    if isinstance(subject, Refusal) or row.input_tokens is None or row.output_tokens is None:
        return False
    floor = floor_s(row, subject)
    tpot, ttft, e2e = row.value("tpot"), row.value("ttft"), row.value("e2e")
    return (
        (tpot is not None and row.output_tokens > 1 and tpot < floor["tpot"])
        or (ttft is not None and ttft < floor["ttft"])
        or (e2e is not None and e2e < floor["e2e"])
        or (tpot is not None and ttft is not None and ttft + tpot * (row.output_tokens - 1) < floor["cycle"])
    )


def floor_s(row: Row, subject: Subject) -> dict[str, float]:
    """Least seconds a perfect part needs: bytes at full bandwidth, FLOP at 80 % of the peak.

    TPOT: a decode step of one sequence. TTFT: the arithmetic of one prompt. E2E of a batch: the prompts of all its
    sequences and the longest decode. Cycle: in a closed loop every request in flight has its prompt computed and
    its own cache read once per request, so no request can be shorter than all of that.
    """
    inputs, outputs = float(row.input_tokens or 1), float(row.output_tokens or 1)
    read_s, flop_s, cache_s, pair_s = perfect_step_s(subject)
    context_s = flop_s + cache_s * (inputs + outputs / 2)
    shortest = 0.8 if "dashboard" in row.facts.get("origin", "") else 1.0
    prompt_s = shortest * inputs * (flop_s + shortest * inputs / 2 * pair_s)
    loop = (row.concurrency or 0) / subject.replica_count if load_of(row) == "closed_loop" else 0.0
    batch = (row.concurrency or 1) / subject.replica_count if load_of(row) == "burst" else 1
    return {
        "tpot": read_s,
        "ttft": prompt_s,
        "cycle": loop * (prompt_s + shortest * max(outputs - 1, 0) * context_s),
        "e2e": batch * prompt_s + max(outputs - 1, 0) * shortest * read_s,
    }
