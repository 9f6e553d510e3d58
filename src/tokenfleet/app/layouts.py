"""Which layouts and engine settings a scenario lets the plan try."""

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product

from tokenfleet.app.engine_settings import with_whole_prompts
from tokenfleet.app.ranks import sized, with_fitting_slots
from tokenfleet.app.scenario_types import Scenario, Vary
from tokenfleet.app.scenario_words import said
from tokenfleet.domain.errors import BadInput, Problem
from tokenfleet.domain.gpu import Gpu
from tokenfleet.domain.model import ModelArchitecture
from tokenfleet.domain.replica import EngineSettings, Layout

LAYOUT_KEYS = ("pipeline_parallel", "attention_data_parallel", "expert_parallel")
_STAGES_BEYOND = (2, 4)
"""Pipeline stages tried where no layout of one stage runs."""


def layouts_to_try(
    model: ModelArchitecture, gpu: Gpu, scenario: Scenario, tensor_parallels: Sequence[int]
) -> tuple[Layout, ...]:
    """Every layout of the sizes a scenario names, or of the usual ones where it names none.

    Without a word of the scenario: one pipeline stage; for a model with experts and latent attention, whose KV cache
    does not split over ranks, also as many data-parallel attention ranks as fill a node; experts over all ranks where
    attention is data-parallel, whole on each otherwise.
    """
    stages = scenario.pipeline_parallel or [1]
    found = [
        Layout(tensor_parallel=tensor, pipeline_parallel=pipeline, attention_data_parallel=data, expert_parallel=expert)
        for tensor, pipeline in product(tensor_parallels, stages)
        for data in scenario.attention_data_parallel or _usual_data(model, gpu, tensor)
        for expert in scenario.expert_parallel or [tensor * data if data > 1 and _has_experts(model) else 1]
    ]
    return tuple(dict.fromkeys(found))


def with_one_choice(scenario: Scenario) -> Scenario:
    """A scenario for a replay, which tries nothing: one layout for each size, and what is varied fixed in ``engine``.

    Raises:
        BadInput: a layout key or a key of ``vary`` has several values.
    """
    varied = said(scenario.vary)
    asked = {key: getattr(scenario, key) or [] for key in LAYOUT_KEYS}
    asked |= {f"vary.{key}": values for key, values in varied.items()}
    planned = scenario.pools is None and scenario.groups is None
    mend = "leave one value" + (", or let tokenfleet plan choose and give its plan with --plan" if planned else "")
    problems = [
        Problem(key, f"leaves a choice: {', '.join(str(value).lower() for value in values)}", mend)
        for key, values in asked.items()
        if len(set(values)) > 1
    ]
    if problems:
        raise BadInput(problems)
    return scenario.model_copy(
        update={
            "engine": scenario.engine.model_copy(update={key: values[0] for key, values in varied.items()}),
            "vary": Vary(),
            "attention_data_parallel": scenario.attention_data_parallel or [1],
        }
    )


def layouts_beyond(scenario: Scenario, tensor_parallels: Sequence[int]) -> tuple[Layout, ...]:
    """Pipelines of whole nodes, for a gpu on which nothing else runs; none where the scenario names its stages."""
    if scenario.pipeline_parallel is not None:
        return ()
    largest = max(tensor_parallels)
    return tuple(Layout(tensor_parallel=largest, pipeline_parallel=stages) for stages in _STAGES_BEYOND)


def engines_to_try(
    engine: EngineSettings, layout: Layout, scenario: Scenario, model: ModelArchitecture
) -> Iterator[EngineSettings]:
    """Settings of a whole replica, in every combination of what the scenario varies."""
    renamed = {"context_limit": "context_limit_tokens"}
    varied = {renamed.get(key, key): dict.fromkeys(values) for key, values in said(scenario.vary).items()}
    fixed = scenario.engine.max_batched_tokens is not None or "max_batched_tokens" in varied
    slots_said = scenario.engine.max_sequence_count is not None or "max_sequence_count" in varied
    for values in product(*varied.values()):
        setting = replace(engine, **dict(zip(varied, values, strict=True)))
        setting = setting if slots_said else with_fitting_slots(setting)
        # A person who writes a budget writes the replica's; the engine's own default is that of one rank.
        yield setting if fixed else sized(with_whole_prompts(setting, model), layout)


def _usual_data(model: ModelArchitecture, gpu: Gpu, tensor: int) -> list[int]:
    latent = any(entry.kind == "latent" for entry in model.attention)
    whole = gpu.gpus_per_node_count // tensor
    return [1, whole] if latent and _has_experts(model) and whole > 1 else [1]


def _has_experts(model: ModelArchitecture) -> bool:
    return any(block.expert_count for block in model.feed_forward)
