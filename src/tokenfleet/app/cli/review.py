"""``tokenfleet review``: the mistakes people make."""

from pathlib import Path

import click

from tokenfleet.app.cli.face import Face, face_options


@click.command("review", short_help="Find the mistakes people make in a scenario, plan, sizing sheet or benchmark.")
@click.argument("file", type=click.Path(path_type=Path))
@face_options
@click.pass_obj
def command(face: Face, file: Path) -> int:
    """Hold FILE against the mistakes people make when they size a fleet.

    FILE is a scenario, a plan.json or its folder, a sizing sheet (sizing: ...) or the JSON report of a serving
    benchmark. Each finding names its rule, the clause that breaks, and how to mend it. Exits with 1 on a mistake; notes
    are none.
    """
    from tokenfleet.app.review import review

    face.action = "review"
    found = review(file)
    if face.json:
        face.document(
            {
                "kind": found.kind,
                "rule_count": found.rule_count,
                "findings": [
                    {
                        "rule": finding.rule.id,
                        "severity": finding.rule.severity,
                        "found": finding.found,
                        "breaks": finding.rule.breaks,
                        "mend": finding.rule.mend,
                    }
                    for finding in found.findings
                ],
            }
        )
    else:
        for finding in found.findings:
            rule = finding.rule
            lines = [f"{rule.id}: {finding.found}", f"breaks  {rule.breaks}", f"mend    {rule.mend}"]
            face.blocks([(rule.severity.capitalize(), lines)])
        count = len(found.findings)
        face.blocks([("Review", [f"{count} of {found.rule_count} rules for a {found.kind} found something"])])
    return 1 if found.has_mistakes else 0
