"""Reads a file, finds out what it is, and holds every rule against it."""

from collections.abc import Mapping
from pathlib import Path

from tokenfleet.app.review_files import Sizing, benchmark_file, plan_file, read_json
from tokenfleet.app.review_rules import RULES, Rule
from tokenfleet.app.scenario import checked, load_scenario
from tokenfleet.app.yaml_lines import read_yaml
from tokenfleet.domain.errors import BadInput
from tokenfleet.domain.records import dataclass


@dataclass(frozen=True, slots=True, kw_only=True)
class Finding:
    """One mistake in one file."""

    rule: Rule
    found: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Review:
    """All of them."""

    kind: str
    """``scenario``, ``plan``, ``sizing`` or ``benchmark``."""
    rule_count: int
    """Rules that such a file can break."""
    findings: tuple[Finding, ...]

    @property
    def has_mistakes(self) -> bool:
        """Whether anything but notes was found."""
        return any(finding.rule.severity == "mistake" for finding in self.findings)


def review(path: Path) -> Review:
    """Holds every rule against a file.

    Raises:
        BadInput: the file cannot be read, or is none of the four kinds.
    """
    kind, facts = _read(path)
    findings, count = [], 0
    for rule in RULES:
        check = getattr(rule, kind)
        if check is not None:
            count += 1
            text = check(facts)
            if text is not None:
                findings.append(Finding(rule=rule, found=text))
    return Review(kind=kind, rule_count=count, findings=tuple(findings))


def _read(path: Path) -> tuple[str, object]:
    if path.is_dir():
        path = path / "plan.json"
    if path.suffix in (".json", ".jsonl"):
        document = read_json(path)
        if "feasible" in document:
            return "plan", plan_file(document, path)
        if "completed" in document:
            return "benchmark", benchmark_file(document, path)
        raise BadInput.at(str(path), "is neither a plan nor a benchmark's report", "give plan.json, or a scenario")
    file = read_yaml(path)
    if isinstance(file.value, Mapping) and "contract" in file.value:
        what = "is a contract, which tokenfleet contract looks at"
        raise BadInput.at(str(path), what, "give the plan.json that came with it")
    if isinstance(file.value, Mapping) and "sizing" in file.value:
        sheet = file.value["sizing"]
        if not isinstance(sheet, Mapping) or len(file.value) > 1:
            raise BadInput.at(str(path), "a sizing sheet has one key, sizing, with keys below", "see: docs/review.md")
        return "sizing", checked(Sizing, sheet, lambda key: file.where(("sizing", *key)))
    return "scenario", load_scenario(path)
