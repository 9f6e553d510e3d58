"""The contract on paper: YAML with comments a person can read, and back again with the line of every mistake."""

import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import yaml
from pydantic import ValidationError

from tokenfleet.contract.judge import clauses_of
from tokenfleet.contract.schema import Contract, FleetSize, Hardware
from tokenfleet.domain.errors import BadInput, Problem

_KeyPath = tuple[str | int, ...]
_WHICH = "name a contract.yaml that a plan has written"

_COMMENTS = {
    "contract": "Version of this format.",
    "runtime": "Every engine setting counts: change one, and the promise is not examined any more.",
    "gpu": "One replica.",
    "fleet": "carrying_count replicas keep the promise alone; spare_count more are paid for.",
    "pools": "Several fleets. Of each, carrying_count replicas keep the promise alone, and it serves what it takes.",
    "handover": "How KV gets from the pool that prefills to the one that decodes.",
    "workload": "The demand the promise was examined with; rates are those of its peak window.",
    "promise": "Times in seconds. A request that never finishes counts as late. A class's clause is about it alone.",
    "evidence": "predicted_low and predicted_high: the 90 % range of the step times, replayed.",
    "survives": "kept: null means not examined.",
    "drills": "What tokenfleet drill went through; empty: nothing yet.",
    "limits": "Rates are what the carrying replicas sustain within the promise.",
    "scale_out": "Nothing above counts on a replica that is still starting. null is unknown.",
    "degrade": "What happens when more arrives than promised for, mildest first.",
    "cost": "Dollars per hour. input + cached + output + headroom + idle + spare = total.",
    "valid": "Ends on the day, or at once when one of the digests changes.",
}


_RARE = (
    *("traffic_class", "rejection_rate_fraction", "queue_limit_count", "class_rates", "deadlines", "classes"),
    *("runtime", "gpu", "fleet", "limits", "pools", "handover", "takes"),
    *("serves", "beside"),
)
"""Keys that are left out where nothing stands under them."""


class _Dumper(yaml.SafeDumper):
    """Lists indented under their key, and tuples as lists."""

    def increase_indent(self, flow: bool = False, indentless: bool = False) -> None:  # noqa: ARG002
        """Indents lists too: easier to read."""
        super().increase_indent(flow, False)


_Dumper.add_representer(tuple, lambda dumper, data: dumper.represent_list(data))


def contract_text(document: Mapping[str, object]) -> str:
    """The document as commented YAML.

    Raises:
        pydantic.ValidationError: it is no contract; a bug of the caller.
    """
    contract = Contract.model_validate(document)
    lines = [f"# {line}".rstrip() + "\n" for line in _summary(contract)]
    for key, value in _said(contract.model_dump(mode="python")).items():
        body = yaml.dump(
            {key: value}, Dumper=_Dumper, sort_keys=False, allow_unicode=True, width=110, default_flow_style=False
        )
        lines.append("\n" + (f"# {_COMMENTS[key]}\n" if key in _COMMENTS else "") + body)
    return "".join(lines)


def _said(document: dict[str, Any]) -> dict[str, Any]:
    """The document without what few promises have, where this one has it not."""

    def kept(value: object) -> Any:  # noqa: ANN401 - plain data of any shape
        if isinstance(value, dict):
            return {key: kept(below) for key, below in value.items() if key not in _RARE or below not in (None, ())}
        return [kept(each) for each in value] if isinstance(value, tuple | list) else value

    said: dict[str, Any] = kept(document)
    return said


def _summary(contract: Contract) -> list[str]:
    promised = [_limit(*clause) for clause in clauses_of(contract.promise.slo)]
    state = "no load test yet -> UNPROVEN" if contract.evidence.load_test is None else contract.evidence.status
    return [
        f"Capacity contract {contract.name}",
        "",
        *_bought(contract),
        f"promise   {'   '.join(promised)}",
        f"survives  {_survived(contract)}",
        f"evidence  replay of {contract.evidence.replay.made_on}; {state}",
        f"valid     until {contract.valid.until}",
    ]


def _bought(contract: Contract) -> Iterator[str]:
    total = f"${contract.cost.total_usd_per_hour:.2f}/h"
    peak = f"{contract.workload.peak_rate_per_s:.3g} requests/s at the peak"
    if len(contract.fleets) == 1:
        ((_, gpu, fleet),) = contract.fleets
        yield f"buy       {_replicas(gpu, fleet)}, {total}"
        yield f"carries   {peak} with {fleet.carrying_count} replicas; {fleet.spare_count} may fail"
        return
    yield f"buy       {len(contract.fleets)} pools, {total}"
    for name, gpu, fleet in contract.fleets:
        carry = "carries" if fleet.carrying_count == 1 else "carry"
        yield f"  {name}: {_replicas(gpu, fleet)}; {fleet.carrying_count} {carry}, {fleet.spare_count} may fail"
    yield f"carries   {peak}, with the spare of every pool gone"


def _replicas(gpu: Hardware, fleet: FleetSize) -> str:
    return (
        f"{fleet.replica_count} replicas of {gpu.per_replica_count} x {gpu.name} (TP{gpu.tensor_parallel}, "
        f"{gpu.precision}, kv {gpu.kv_precision}): {fleet.gpu_count} gpus"
    )


def _limit(name: str, unit: str, limit: float) -> str:
    said = name.replace("error_rate", "errors").replace("_", " ")
    if unit == "s":
        metric, _, rest = said.partition(" ")
        return f"{metric.upper()} {rest} <= {limit:g} s"
    if name.startswith("done_"):
        return said
    return f"{said} <= {limit * 100:g} %" if unit == "fraction" else f"{said} <= {limit:g}"


def _survived(contract: Contract) -> str:
    said = {True: "kept", False: "broken", None: "not examined"}
    losses = contract.survives
    parts = (("replica", losses.replica), ("node", losses.node), ("zone", losses.zone), ("rollout", losses.rollout))
    return "   ".join(
        f"{name} {said[loss.kept]}" if name == "rollout" else f"{loss.count} {name} {said[loss.kept]}"
        for name, loss in parts
    )


def write_contract(document: Mapping[str, object], path: Path) -> None:
    """Writes the document to ``path`` whole or not at all.

    Raises:
        OSError: the folder cannot be written.
    """
    text = contract_text(document)
    # A temporary file of the library would be private, and what is promised is for everybody the folder is for.
    draft = path.with_name(f".{path.name}.{os.getpid()}.part")
    try:
        draft.write_text(text, encoding="utf-8")
        draft.replace(path)
    finally:
        draft.unlink(missing_ok=True)


def read_contract(path: Path) -> dict[str, object]:
    """Reads a contract; nothing is guessed.

    Returns:
        The document, as :func:`contract_document` gives it.

    Raises:
        BadInput: no such file, no YAML, or keys and values that are no contract, each with its line.
    """
    if path.is_dir():
        raise BadInput.at(str(path), "is a folder", "name the contract.yaml in it")
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise BadInput.at(str(path), f"cannot be read ({error})", _WHICH) from error
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
        value = yaml.safe_load(text)
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark else 1
        raise BadInput.at(f"{path}:{line}", f"is not YAML: {error.problem}", "mend the line or plan again") from error
    if not isinstance(value, Mapping) or "contract" not in value:
        raise BadInput.at(str(path), "is no contract, which begins with contract: 1", _WHICH)
    lines: dict[_KeyPath, int] = {}
    problems = _number_lines(node, (), lines, path)
    try:
        contract = Contract.model_validate(value)
    except ValidationError as error:
        problems += [_problem(path, lines, detail["loc"], detail["msg"]) for detail in error.errors()]
        raise BadInput(problems) from error
    if problems:
        raise BadInput(problems)
    return contract.model_dump(mode="python")


def _number_lines(node: yaml.Node | None, where: _KeyPath, lines: dict[_KeyPath, int], path: Path) -> list[Problem]:
    """Notes the line of each key; a key written twice is a problem."""
    problems: list[Problem] = []
    if isinstance(node, yaml.MappingNode):
        for key, value in node.value:
            below = (*where, str(key.value))
            line = key.start_mark.line + 1
            if below in lines:
                problems.append(Problem(f"{path}:{line}", f"{_dotted(below)} is written twice", "keep one"))
            lines[below] = line
            problems += _number_lines(value, below, lines, path)
    elif isinstance(node, yaml.SequenceNode):
        for index, value in enumerate(node.value):
            lines[(*where, index)] = value.start_mark.line + 1
            problems += _number_lines(value, (*where, index), lines, path)
    return problems


def _problem(path: Path, lines: Mapping[_KeyPath, int], where: _KeyPath, what: str) -> Problem:
    known = where
    while known and known not in lines:
        known = known[:-1]
    line = lines.get(known, 1)
    return Problem(f"{path}:{line}", f"{_dotted(where)}: {what[0].lower()}{what[1:]}", "mend it or plan again")


def _dotted(where: _KeyPath) -> str:
    text = ""
    for part in where:
        text += f"[{part}]" if isinstance(part, int) else f".{part}" if text else part
    return text
