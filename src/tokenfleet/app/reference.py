"""Writes the reference pages from the types and the commands, so that they cannot drift.

``python -m tokenfleet.app.reference DOCS`` renews the part between the markers in ``DOCS/scenario.md`` and
``DOCS/commands.md``, and ``DOCS/scenario.schema.json`` for editors; a test fails when one of them is stale.
"""

import ast
import inspect
import json
import re
import sys
from collections.abc import Iterator
from functools import cache
from itertools import pairwise
from pathlib import Path
from types import NoneType, UnionType
from typing import Annotated, Any, Final, Literal, Union, get_args, get_origin

import click
from pydantic import BaseModel
from pydantic.fields import FieldInfo

from tokenfleet.app import (
    compare_types,
    memory_spec,
    phase_types,
    pool_types,
    redundancy_types,
    scaling_types,
    scenario_words,
    slo_types,
    takes_types,
    world_types,
)
from tokenfleet.app import scenario_types as types
from tokenfleet.app.cli import COMMANDS, root
from tokenfleet.app.compare_types import CompareSpec, OwnedSpec, TasksSpec

_BEGIN: Final = "<!-- generated: python -m tokenfleet.app.reference docs -->"
_END: Final = "<!-- end of generated part -->"
_QUANTITIES: Final = {
    scenario_words.Duration: "duration",
    scenario_words.Wait: "duration",
    scenario_words.Span: "duration",
    scenario_words.Moment: "duration",
    scenario_words.Fraction: "percent",
    scenario_words.Cap: "percent",
    scenario_words.Rate: "rate",
    scenario_words.Tokens: "tokens",
    scenario_words.Count: "whole number",
    scenario_words.Positive: "number",
    scenario_words.GpuName: "gpu",
    scenario_words.ModelName: "model",
    scenario_words.EngineName: "engine",
    scenario_words.InputFile: "file",
    scenario_words.Lengths: "lengths",
    memory_spec.Size: "size",
    scenario_words.DraftName: "model or `mtp`",
    takes_types.ClockTime: "time of day",
    pool_types.WaitTime: "duration, or two",
    scaling_types.Waits: "duration, or one for each priority",
    pool_types.PromptOrLengths: "`prompt` or lengths",
    pool_types.LinkName: "link",
}
_DURATIONS: Final = (scenario_words.Duration, scenario_words.Wait, scenario_words.Span)
_PARTS: Final = (
    ("", types.Scenario),
    ("workload", types.WorkloadSource),
    ("workload.lengths", types.DrawnLengths),
    ("slo", slo_types.SloSpec),
    ("slo.classes.NAME", slo_types.ClassSpec),
    ("slo.classes.NAME.takes", takes_types.TakesSpec),
    ("vary", types.Vary),
    ("engine", types.EngineChoice),
    ("engine.speculation", types.SpeculationSpec),
    ("memory", memory_spec.MemorySpec),
    ("redundancy", redundancy_types.Redundancy),
    ("zones[]", redundancy_types.ZoneSpec),
    ("rollout", types.RolloutSpec),
    ("disaggregated", pool_types.DisaggregatedSpec),
    ("also_try", pool_types.AlsoTrySpec),
    ("pools.NAME", pool_types.PoolSpec),
    ("pools.NAME.prefill", pool_types.ScaledPhaseSpec),
    ("pools.NAME.takes", takes_types.TakesSpec),
    ("pools.NAME.window", takes_types.WindowSpec),
    ("chain", pool_types.ChainSpec),
    ("chain.steps[]", pool_types.StepSpec),
    ("images", pool_types.ImagesSpec),
    ("groups.NAME", pool_types.GroupSpec),
    ("batch", world_types.BatchSpec),
    ("events[]", world_types.EventSpec),
    ("clients", world_types.ClientsSpec),
    ("admission", world_types.AdmissionSpec),
    ("users", world_types.UsersSpec),
    ("autoscaling", scaling_types.AutoscalingSpec),
    ("autoscaling.supply", scaling_types.SupplySpec),
    ("ladder", scaling_types.LadderSpec),
    ("ladder.rungs[]", scaling_types.RungSpec),
    ("ladder.rungs[].enter", scaling_types.MarkSpec),
    ("ladder.rungs[].evaluation", scaling_types.EvaluationSpec),
    ("ladder.rungs[].fleet", phase_types.PhaseSpec),
    ("prices", types.Prices),
    ("compare", CompareSpec),
    ("compare.owned", OwnedSpec),
    ("compare.tasks", TasksSpec),
)


_SOURCES: Final = (
    types,
    pool_types,
    phase_types,
    scaling_types,
    slo_types,
    takes_types,
    world_types,
    compare_types,
)
"""Modules whose strings stand under the keys they are about."""


def scenario_reference() -> str:
    """Every key of a scenario as Markdown tables, one for each part."""
    _describe()
    return "\n".join(line for key, kind in _PARTS for line in _part(key, kind))


@cache
def _describe() -> None:
    """Give every key the sentence that stands under it in the source.

    Here and not in the types, because reading their source takes longer than a command needs for all other types.
    """
    sources = "".join(inspect.getsource(module) for module in _SOURCES)
    classes = {node.name: node for node in ast.parse(sources).body if isinstance(node, ast.ClassDef)}
    for _, kind in reversed(_PARTS):
        own = [classes[each.__name__] for each in kind.__mro__ if each.__name__ in classes]
        for key, text in pairwise(line for each in own for line in each.body):
            if isinstance(key, ast.AnnAssign) and isinstance(key.target, ast.Name) and isinstance(text, ast.Expr):
                kind.model_fields[key.target.id].description = inspect.cleandoc(ast.literal_eval(text.value))
        kind.model_rebuild(force=True)


def _part(key: str, kind: type[BaseModel]) -> Iterator[str]:
    yield f"### `{key}`" if key else "### The scenario"
    yield ""
    yield _sentence(kind.__doc__)
    yield ""
    yield "| key | value | if left out | |"
    yield "|---|---|---|---|"
    for name, field in kind.model_fields.items():
        dotted = f"{key}.{name}" if key else name
        yield f"| `{dotted}` | {_value(field)} | {_default(field)} | {_sentence(field.description)} |"
    if issubclass(kind, slo_types.PromiseSpec):
        metrics = "A latency promise; metrics: ttft, itl, tpot, e2e."
        yield f"| `{key}.METRIC_pPERCENTILE` | duration | no promise | {metrics} |"
    yield ""


def _sentence(text: str | None) -> str:
    return " ".join((text or "").split()).replace("``", "`").replace("|", "\\|")


def _value(field: FieldInfo) -> str:
    for quantity, name in _QUANTITIES.items():
        if get_args(quantity)[1] in field.metadata:
            return name
    return _kind(field.annotation)


def _kind(annotation: Any) -> str:  # noqa: ANN401 - any annotation
    if annotation in _QUANTITIES:
        return _QUANTITIES[annotation]
    origin, inner = get_origin(annotation), get_args(annotation)
    if origin is Annotated:
        return _kind(inner[0])
    if origin is Literal:
        return ", ".join(f"`{choice}`" for choice in inner)
    if origin in (Union, UnionType):
        return " or ".join(_kind(part) for part in inner if part is not NoneType)
    if origin is list:
        return f"list of {_kind(inner[0])}"
    if origin is dict:
        return f"{_kind(inner[1])} by {_kind(inner[0])}"
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        return "see below"
    return {str: "text", int: "whole number", bool: "`true` or `false`", float: "number"}[annotation]


def _default(field: FieldInfo) -> str:
    if field.is_required():
        return "required"
    default = field.get_default(call_default_factory=True)
    if default is None or isinstance(default, BaseModel) or default in ({}, ""):
        return ""
    if isinstance(default, bool):
        return f"`{str(default).lower()}`"
    if any(get_args(each)[1] in field.metadata for each in _DURATIONS):
        from tokenfleet.app.quantities import written_duration

        return f"`{written_duration(default)}`"
    if get_args(scenario_words.Fraction)[1] in field.metadata:
        return f"`{default * 100:g}%`"
    listed = (
        f"[{', '.join(default)}]"
        if isinstance(default, list)
        else f"{default:g}"
        if isinstance(default, float)
        else default
    )
    return f"`{listed}`"


def command_reference() -> str:
    """Every command with its options as Markdown."""
    return "\n".join(line for name in COMMANDS for line in _command(name))


def _command(name: str) -> Iterator[str]:
    command = root.get_command(click.Context(root), name)
    if command is None:
        raise LookupError(name)
    arguments = " ".join(
        str(each.human_readable_name).upper() for each in command.params if isinstance(each, click.Argument)
    )
    yield f"### `tokenfleet {name}{' ' + arguments if arguments else ''}`"
    yield ""
    yield _sentence(command.help)
    yield ""
    yield "| option | |"
    yield "|---|---|"
    for option in command.params:
        if isinstance(option, click.Option):
            spelled = ", ".join(f"`{flag}`" for flag in option.opts)
            value = "" if option.is_flag else f" `{option.metavar or _typed(option.type)}`"
            needed = " Required." if option.required else ""
            yield f"| {spelled}{value} | {_sentence(option.help)}{needed} |"
    yield ""


def _typed(kind: click.ParamType[Any]) -> str:
    return "\\|".join(map(str, kind.choices)) if isinstance(kind, click.Choice) else kind.name.upper()


def schema() -> str:
    """JSON schema of a scenario file, for editors."""
    _describe()
    return json.dumps(types.Scenario.model_json_schema(), indent=2) + "\n"


def renewed(page: str, body: str) -> str:
    """``page`` with the part between the markers replaced by ``body``."""
    marked = re.compile(f"{re.escape(_BEGIN)}.*{re.escape(_END)}", re.DOTALL)
    if marked.search(page) is None:
        raise ValueError("the page has no markers")
    return marked.sub(lambda _found: f"{_BEGIN}\n\n{body}\n{_END}", page)


def pages(docs: Path) -> dict[Path, str]:
    """What each generated file should hold now."""
    scenario, commands = docs / "scenario.md", docs / "commands.md"
    return {
        scenario: renewed(scenario.read_text(encoding="utf-8"), scenario_reference()),
        commands: renewed(commands.read_text(encoding="utf-8"), command_reference()),
        docs / "scenario.schema.json": schema(),
    }


if __name__ == "__main__":
    for path, text in pages(Path(sys.argv[1])).items():
        path.write_text(text, encoding="utf-8")
