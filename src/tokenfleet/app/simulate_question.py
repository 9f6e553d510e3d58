"""Which fleet ``simulate`` replays on: named by options, or chosen by an earlier plan."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace
from difflib import get_close_matches
from pathlib import Path
from typing import Final, TypeVar

from pydantic import BaseModel, ConfigDict

from tokenfleet import catalog, performance
from tokenfleet.app.compose import deployments, precisions, tensor_parallels, why_not
from tokenfleet.app.engine_settings import refuse_short_steps, with_overrides
from tokenfleet.app.layouts import LAYOUT_KEYS, layouts_to_try, with_one_choice
from tokenfleet.app.memory_spec import with_memory
from tokenfleet.app.pool_types import GroupSpec
from tokenfleet.app.pools_fleet import phase_fleet
from tokenfleet.app.scenario import checked
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.scenario_words import Count, EngineName, GpuName, Strict, Tokens
from tokenfleet.app.yaml_lines import KeyPath, dotted
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.fleet import Fleet, ReplicaGroup, Router
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.replica import Deployment, KvPrecision, Layout, Precision

Choice = TypeVar("Choice", bound=str)
OPTIONS: Final = {
    "gpu": "--gpu",
    "replicas": "--replicas",
    "tensor_parallel": "--tp",
    "precision": "--precision",
    "kv_dtype": "--kv-dtype",
}


class FleetOptions(Strict):
    """A fleet of equal replicas; what is left out comes from the scenario, where it leaves no choice."""

    gpu: GpuName | None = None
    replicas: Count | None = None
    tensor_parallel: Count | None = None
    precision: Precision | None = None
    kv_dtype: KvPrecision | None = None


class PlannedGroup(BaseModel):
    """A replica group as a plan's document holds it; its other names are of no concern here."""

    model_config = ConfigDict(extra="ignore", strict=True, frozen=True)

    gpu: GpuName
    replica_count: Count
    tensor_parallel: Count
    pipeline_parallel: Count
    attention_data_parallel: Count
    expert_parallel: Count
    precision: Precision
    kv_dtype: KvPrecision
    engine: EngineName
    max_batched_tokens: Tokens
    max_sequence_count: Count
    context_limit_tokens: Tokens | None
    prefix_caching: bool
    chunked_prefill: bool
    router: Router

    @property
    def layout(self) -> Layout:
        """GPUs of one replica."""
        return Layout(
            tensor_parallel=self.tensor_parallel,
            pipeline_parallel=self.pipeline_parallel,
            attention_data_parallel=self.attention_data_parallel,
            expert_parallel=self.expert_parallel,
        )


def fleet_asked(
    scenario: Scenario, model: ModelArchitecture, planned: Path | None, options: Mapping[str, object]
) -> Fleet:
    """The fleet that options name, that an earlier plan chose, or that the scenario names by groups.

    Raises:
        BadInput: options and plan say the same thing twice, the scenario scales what an option fixes, or the fleet
            cannot run.
    """
    if scenario.groups is not None:
        extra = [OPTIONS[key] for key, value in options.items() if value is not None]
        extra += ["--plan"] if planned is not None else []
        if extra:
            raise BadInput(Problem(each, "does not go with the scenario's groups", "leave it out") for each in extra)
        return fleet_of_groups(scenario, scenario.groups, model)
    return replace(_one_asked(scenario, model, planned, options), scrape_s=scenario.scrape)


def fleet_of_groups(scenario: Scenario, groups: Mapping[str, GroupSpec], model: ModelArchitecture) -> Fleet:
    """The fleet that the scenario names group by group.

    Raises:
        BadInput: a replica that cannot run, or a layout or setting that the scenario leaves open.
    """
    scenario = with_one_choice(scenario)
    made = tuple(
        replace(
            phase_fleet(scenario, spec, model, f"groups.{name}").groups[0],
            weight_ratio=spec.weight,
            up_to=spec.up_to,
        )
        for name, spec in groups.items()
    )
    return Fleet(groups=made, router=scenario.router, scrape_s=scenario.scrape)


def _one_asked(
    scenario: Scenario, model: ModelArchitecture, planned: Path | None, options: Mapping[str, object]
) -> Fleet:
    chosen = options_from(options)
    if scenario.autoscaling is not None and chosen.replicas is not None:
        raise BadInput.at("--replicas", "the scenario scales its fleet", "set autoscaling.min, start and max")
    if planned is None:
        return fleet_by_options(scenario, model, chosen)
    extra = [OPTIONS[key] for key, value in options.items() if value is not None and key != "replicas"]
    if extra:
        raise BadInput(Problem(each, "does not go with --plan, which has it", "leave one out") for each in extra)
    return fleet_of_plan(scenario, model, planned, replicas=chosen.replicas)


def fleet_by_options(scenario: Scenario, model: ModelArchitecture, options: FleetOptions) -> Fleet:
    """The fleet that options and scenario name together.

    Raises:
        BadInput: the scenario leaves a choice that no option makes, or the replica cannot run.
    """
    problems: list[Problem] = []
    gpu_name = options.gpu or _only("gpu", scenario.gpus, problems)
    precision = options.precision or _only("precision", precisions(model, scenario.precision), problems)
    kv_precision = options.kv_dtype or _only("kv_dtype", scenario.kv_dtype, problems)
    if gpu_name is None or precision is None or kv_precision is None:
        raise BadInput(problems)
    gpu = catalog.gpu(gpu_name)
    one = with_one_choice(scenario).model_copy(update={"precision": [precision], "kv_dtype": [kv_precision]})
    sizes = (options.tensor_parallel,) if options.tensor_parallel else tensor_parallels(gpu, one)
    tried = list(deployments(model, gpu, one, layouts_to_try(model, gpu, one, sorted(sizes))))
    found = next((each for each in tried if not why_not(model, gpu, each)), tried[-1])
    refuse_short_steps(found.engine, model, "vary.max_batched_tokens" if scenario.vary.max_batched_tokens else "")
    # The person's own choice of a layout is what to mend; else no size of this gpu will do.
    own = [OPTIONS["tensor_parallel"]] if options.tensor_parallel else []
    own += [key for key in LAYOUT_KEYS if getattr(scenario, key) is not None]
    where = next(iter(own), OPTIONS["gpu"])
    return Fleet(groups=(_group(model, gpu, found, options.replicas or 1, where),), router=scenario.router)


def fleet_of_plan(scenario: Scenario, model: ModelArchitecture, path: Path, *, replicas: int | None) -> Fleet:
    """The fleet that ``plan.json`` chose, with another number of replicas where one is given.

    Raises:
        BadInput: the file is no plan, is for another model, found no fleet or several pools, or its replica cannot run.
    """
    listed = groups_of(plan_of(path, model))
    if replicas is not None and len(listed) > 1:
        raise BadInput.at("--replicas", f"{path} has {len(listed)} groups", "leave it out")
    fleets = [
        planned_fleet(scenario, model, values, f"{path}: fleet[{index}]", replicas=replicas)
        for index, values in enumerate(listed)
    ]
    return replace(fleets[0], groups=tuple(group for fleet in fleets for group in fleet.groups))


def groups_of(document: Mapping[str, object]) -> list[object]:
    """The replica groups of a plan's document."""
    listed = document.get("fleet")
    return listed if isinstance(listed, list) else []


def plan_of(path: Path, model: ModelArchitecture) -> Mapping[str, object]:
    """The document of a plan that found something to buy for this model.

    Raises:
        BadInput: the file is no plan, is for another model, or found no fleet.
    """
    document = _plan_document(path)
    if document.get("model") != model.name:
        what = f"plans {document.get('model')}, and the scenario serves {model.name}"
        raise BadInput.at(str(path), what, "plan the scenario anew")
    if not groups_of(document):
        raise BadInput.at(str(path), "holds no fleet: none keeps the promise", "name one with --gpu and --replicas")
    return document


def planned_fleet(
    scenario: Scenario, model: ModelArchitecture, values: object, where: str, *, replicas: int | None = None
) -> Fleet:
    """Equal replicas as a plan's document holds them, behind the router that they were planned with.

    Raises:
        BadInput: it is no replica group, or the replica cannot run.
    """
    group = checked_group(values, where)
    gpu = catalog.gpu(group.gpu)
    engine = replace(
        with_overrides(catalog.engine(group.engine, gpu=gpu), scenario.engine, model),
        max_batched_tokens=group.max_batched_tokens,
        max_sequence_count=group.max_sequence_count,
        context_limit_tokens=group.context_limit_tokens,
        prefix_caching=group.prefix_caching,
        chunked_prefill=group.chunked_prefill,
    )
    deployment = Deployment(
        model=model.name,
        gpu=gpu.name,
        layout=group.layout,
        precision=group.precision,
        kv_precision=group.kv_dtype,
        engine=engine,
    )
    deployment = with_memory(deployment, model, gpu, scenario.memory, place=scenario.model)
    made = _group(model, gpu, deployment, replicas or group.replica_count, where)
    return Fleet(groups=(made,), router=group.router, scrape_s=scenario.scrape)


def options_from(given: Mapping[str, object]) -> FleetOptions:
    """Options as typed, those left out being ``None``.

    Raises:
        BadInput: everything wrong with them.
    """
    values = {key: value for key, value in given.items() if value is not None}
    return checked(FleetOptions, values, lambda path: OPTIONS[str(path[0])])


def _only(key: str, choices: Sequence[Choice], problems: list[Problem]) -> Choice | None:
    """The one choice there is; several are a problem that names them."""
    distinct = tuple(dict.fromkeys(choices))
    if len(distinct) == 1:
        return distinct[0]
    option = OPTIONS[key]
    problems.append(Problem(option, f"the scenario leaves a choice: {', '.join(distinct)}", f"name one with {option}"))
    return None


def _group(model: ModelArchitecture, gpu: Gpu, deployment: Deployment, count: int, where: str) -> ReplicaGroup:
    reasons = why_not(model, gpu, deployment)
    if reasons:
        raise BadInput(Problem(where, reason.text, reason.relax) for reason in reasons)
    return ReplicaGroup(replica=performance.replica_physics(model, gpu, deployment), replica_count=count)


def checked_group(values: object, where: str) -> PlannedGroup:
    """A replica group of a plan's document.

    Raises:
        BadInput: it is none.
    """

    def place(path: KeyPath) -> str:
        return f"{where}.{dotted(path)}"

    if not isinstance(values, dict):
        raise BadInput.at(where, "is no replica group", "give a plan.json of tokenfleet plan")
    return checked(PlannedGroup, values, place)


def _plan_document(path: Path) -> Mapping[str, object]:
    file = path / "plan.json" if path.is_dir() else path
    try:
        document = json.loads(file.read_text(encoding="utf-8"))
    except OSError as error:
        near = get_close_matches(file.name, [each.name for each in file.parent.glob("*")], n=1)
        mend = f"nearest: {near[0]}" if near else "give the plan.json, or the folder, that tokenfleet plan wrote"
        raise BadInput.at(str(file), f"cannot be read: {error.strerror}", mend) from None
    except ValueError as error:
        raise BadInput.at(str(file), f"is no JSON ({error})", "give a plan.json of tokenfleet plan") from None
    if not isinstance(document, dict):
        raise BadInput.at(str(file), "is no plan", "give a plan.json of tokenfleet plan")
    return document
