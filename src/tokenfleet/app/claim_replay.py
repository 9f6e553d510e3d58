"""Claims that only a replay can check: prefill and decode apart against one fleet, at equal GPUs."""

from pathlib import Path

from tokenfleet import catalog, planner, simulator
from tokenfleet.app.compose import Teller, compose, kept_replays
from tokenfleet.app.pool_types import DisaggregatedSpec
from tokenfleet.app.scenario import lines_of, load_scenario, placed
from tokenfleet.app.scenario_types import Scenario
from tokenfleet.app.spreading import spread_replays
from tokenfleet.domain.errors import BadInput


def at_equal_gpus(
    path: Path, gpu: str | None, gpu_count: int | None, link: str | None, teller: Teller
) -> planner.EqualGpus:
    """Both ways to serve a scenario on as many GPUs.

    Args:
        path: The scenario.
        gpu: One of its gpus; ``None``: the only one.
        gpu_count: GPUs of each way; ``None``: a node of them.
        link: What KV crosses; ``None``: what the scenario says.
        teller: Told what is being done.

    Raises:
        BadInput: the scenario cannot be planned, names pools, several gpus, or no link; too few GPUs for two pools.
    """
    asked = load_scenario(path)
    with placed(lines_of(path)):
        _refuse_named_pools(asked)
    asked = _on_one_gpu(_with_link(asked, link), gpu)
    composition = compose(asked, teller)
    question = composition.question
    if not question.candidates:
        reasons = [reason.text for each in question.rejected for reason in each.reasons]
        raise BadInput.at("gpus", f"hold no replica: {'; '.join(reasons)}", "take another gpu or precision")
    count = gpu_count or catalog.gpu(asked.gpus[0]).gpus_per_node_count
    least = min(replica.deployment.layout.gpu_count for replica in question.candidates)
    if count < 2 * least:
        what = f"{count} GPUs hold no two pools of replicas of {least}"
        raise BadInput.at("--gpus", what, f"give {2 * least} or more")
    simulator.warm_up(announce=teller.announce)
    with spread_replays("local", kept_replays(teller, cache=True)) as replay:
        return planner.at_equal_gpus(question, composition.trace, count, progress=teller.step, replay=replay)


def _refuse_named_pools(asked: Scenario) -> None:
    if asked.pools is not None:
        what = "are named here, and the claim is about one fleet, in one pool or with prefill and decode apart"
        mend = (
            "leave pools out, so that the model and the demand of one of them are the scenario; or compare what "
            "tokenfleet size counts with prefill and decode under a pool and without"
        )
        raise BadInput.at("pools", what, mend)


def _with_link(asked: Scenario, link: str | None) -> Scenario:
    if link is None and asked.disaggregated is None:
        raise BadInput.at("--link", "is missing", "say what KV crosses: --link infiniband_400g")
    if link is None:
        return asked
    usual = asked.disaggregated
    spec = DisaggregatedSpec(link=link) if usual is None else usual.model_copy(update={"link": link})
    return asked.model_copy(update={"disaggregated": spec})


def _on_one_gpu(asked: Scenario, gpu: str | None) -> Scenario:
    names = dict.fromkeys(asked.gpus)
    if gpu is None and len(names) > 1:
        raise BadInput.at("--gpu", f"is open: the scenario names {', '.join(names)}", "name one of them")
    return asked if gpu is None else asked.model_copy(update={"gpus": [gpu]})
