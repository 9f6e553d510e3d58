"""``tokenfleet estimate``: the first minute, without any file."""

import math
import os
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from tokenfleet.app.cli.face import Face, face_options
from tokenfleet.domain.errors import BadInput

if TYPE_CHECKING:
    from tokenfleet.app.compose import Composition

_OPTIONS: Final = {
    "model": "--model",
    "gpus": "--gpu",
    "precision": "--precision",
    "kv_dtype": "--kv-dtype",
    "tensor_parallel": "--tp",
    "engine": "--engine",
    "seed": "--seed",
    "redundancy": "--spare",
    "workload.mean_rate": "--rate",
    "workload.lengths": "--input and --output",
    "workload.lengths.input": "--input",
    "workload.lengths.output": "--output",
    "workload.preset": "--preset",
    "workload.profile": "--profile",
    "workload.duration": "--rate",
    "workload.peak_to_mean": "--peak-to-mean",
    "workload.interarrival_cv": "--cv",
    "workload": "--input, --preset or --profile",
    "slo": "--ttft-p99, --itl-p99 or --slo",
    "slo.error_rate": "--error-rate",
}
_REQUESTS: Final = 4_000.0
"""Enough for a p99 in the peak minute, few enough to answer while a person waits."""
_MOST_REQUESTS: Final = 60_000
"""Of a larger demand a part is replayed, and the answer multiplied."""
_FLAGS: Final = ("--json", "--quiet", "--debug", "--force", "--require-feasible")
_FEWEST_MINUTES: Final = 4
_MOST_MINUTES: Final = 240


def _commas(_ctx: click.Context, _option: click.Parameter, values: tuple[str, ...]) -> list[str]:
    return [part.strip() for value in values for part in value.split(",") if part.strip()]


class _WithoutFile(click.Command):
    """Options alone: who gives a scenario is told which command reads it."""

    def parse_args(self, ctx: click.Context, args: list[str]) -> list[str]:
        """As click does.

        Raises:
            BadInput: a scenario stands among the arguments.
        """
        before = ["", *args]
        files = [
            arg
            for option, arg in zip(before, args, strict=False)
            if arg.endswith((".yaml", ".yml")) and (option in _FLAGS or not option.startswith("-"))
        ]
        try:
            return super().parse_args(ctx, args)
        except click.UsageError:
            if not files or files[0].startswith("-"):
                raise
            what = f"reads no scenario, and {files[0]} looks like one"
            mend = f"take tokenfleet plan {files[0]}, or tokenfleet size {files[0]} to count pools that it names"
            raise BadInput.at("tokenfleet estimate", what, mend) from None


@click.command("estimate", cls=_WithoutFile, short_help="Size a fleet in the first minute, without any file.")
@click.option("--model", required=True, help="Name in the catalog, or path to a config.json.")
@click.option(
    "--gpu",
    "gpus",
    multiple=True,
    callback=_commas,
    help="GPUs to try; repeat or separate by commas. [default: h100_sxm, h200_sxm, a100_sxm_80gb, l40s]",
)
@click.option(
    "--precision",
    "precisions",
    multiple=True,
    callback=_commas,
    help="Weights: bf16, fp8, int8, int4... [default: the checkpoint's, or bf16 and fp8]",
)
@click.option("--kv-dtype", "kv_dtypes", multiple=True, callback=_commas, help="KV cache: bf16 or fp8. [default: bf16]")
@click.option(
    "--tp", "tensor_parallels", multiple=True, callback=_commas, help="GPUs per replica to try. [default: 1, 2, 4, 8]"
)
@click.option("--rate", required=True, help="Mean requests per second: 20, 20/s or 1200/min.")
@click.option(
    "--input", "input_lengths", metavar="LENGTHS", help="Prompt tokens: MEAN, or MEDIAN:P95 such as 700:1500."
)
@click.option("--output", "output_lengths", metavar="LENGTHS", help="Generated tokens, written the same way.")
@click.option(
    "--preset", help="Lengths, sessions and bursts of a known kind of service, instead of --input and --output."
)
@click.option("--profile", type=click.Path(), help="Profile file of real traffic, instead of --input and --output.")
@click.option("--ttft-p99", help="Time to first token, 99 of 100 requests: 2s.")
@click.option("--itl-p99", help="Time between two tokens, 99 of 100: 50ms.")
@click.option("--tpot-p99", help="Mean time per output token of a request, 99 of 100: 40ms.")
@click.option("--e2e-p99", help="Time to the last token, 99 of 100 requests: 20s.")
@click.option(
    "--slo", "more", multiple=True, callback=_commas, metavar="NAME=TIME", help="Any other promise: ttft_p95=1s."
)
@click.option("--error-rate", help="Share of requests that may fail. [default: 0.1%]")
@click.option("--peak-to-mean", help="Busiest minute against the mean. [default: 2]")
@click.option("--cv", help="Burstiness of arrivals; 1 is Poisson. [default: 2]")
@click.option("--spare", help="Replicas that may fail: none, n+1 or n+2. [default: n+1]")
@click.option("--engine", help="Engine, or engine and version. [default: vllm]")
@click.option("--seed", type=int, help="Start of every random draw. [default: 1]")
@click.option("--save", type=click.Path(path_type=Path), help="Also write this question as a scenario file.")
@click.option("--force", is_flag=True, help="Let --save overwrite a file.")
@click.option("--require-feasible", is_flag=True, help="Exit with 1 when no fleet keeps the promise.")
@face_options
@click.pass_obj
def command(face: Face, /, save: Path | None, force: bool, require_feasible: bool, **options: Any) -> int:  # noqa: ANN401 - click's options by name
    """Size a fleet from what you know by heart: rate, lengths, promise. No file needed.

    Draws bursty traffic with the lengths you give, replays it on every candidate, and says what to buy, whether the
    promise holds, what binds, and what it costs.
    """
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.compose import answer, compose
    from tokenfleet.app.scenario import checked, placed
    from tokenfleet.app.scenario_types import Scenario
    from tokenfleet.app.summary import summary
    from tokenfleet.app.writing import check_new, save_scenario
    from tokenfleet.app.yaml_lines import KeyPath, dotted
    from tokenfleet.planner import plan_document

    def where(path: KeyPath) -> str:
        if path[:1] == ("slo",) and len(path) > 1:
            spelled = f"--{path[1]}".replace("_", "-")
            return spelled if spelled in _PROMISES else "--slo"
        known = path
        while known and dotted(known) not in _OPTIONS:
            known = known[:-1]
        return _OPTIONS.get(dotted(known), "command line")

    face.action = "estimate"
    if save is not None:
        check_new(save, force=force)
    values = scenario_values(options, name=save.stem if save else "estimate")
    part = parts_of(values["workload"])
    asked = checked(Scenario, _a_part(values, part), where)
    with shown(face) as teller, placed(where):
        composition = _first_look(_standing_for(compose(asked, teller), part, values))
        plan = answer(composition, teller)
    document = plan_document(plan, composition.workload, composition.resolved)
    if save is not None:
        save_scenario(_beside(values, save.parent), save)
    if face.json:
        face.document(document)
    else:
        face.blocks(
            [
                *summary(plan, composition.workload, brief=True),
                ("Next", _next_step(save, asked.workload.profile, feasible=bool(plan.fleets))),
            ]
        )
    return 1 if require_feasible and not plan.fleets else 0


_PROMISES: Final = ("--ttft-p99", "--itl-p99", "--tpot-p99", "--e2e-p99", "--error-rate")


def scenario_values(options: Mapping[str, Any], *, name: str) -> dict[str, Any]:
    """The options as the values of a scenario, those not given left out."""
    slo = {key: options[key] for key in ("ttft_p99", "itl_p99", "tpot_p99", "e2e_p99", "error_rate") if options[key]}
    for promise in options["more"]:
        key, _, limit = promise.partition("=")
        slo[key.strip()] = limit.strip()
    values: dict[str, Any] = {"name": name, "model": options["model"], "slo": slo, "workload": _workload(options)}
    lists = {"gpus": "gpus", "precision": "precisions", "kv_dtype": "kv_dtypes", "tensor_parallel": "tensor_parallels"}
    values |= {key: options[option] for key, option in lists.items() if options[option]}
    if options["engine"]:
        values["engine"] = options["engine"]
    if options["seed"] is not None:
        values["seed"] = options["seed"]
    if options["spare"]:
        values["redundancy"] = {"replicas": options["spare"]}
    return values


def _workload(options: Mapping[str, Any]) -> dict[str, object]:
    workload: dict[str, object] = {"mean_rate": options["rate"]}
    lengths = {side: options[f"{side}_lengths"] for side in ("input", "output") if options[f"{side}_lengths"]}
    if lengths:
        workload["lengths"] = lengths
    workload |= {key: options[key] for key in ("preset", "profile") if options[key]}
    given = {"peak_to_mean": options["peak_to_mean"], "interarrival_cv": options["cv"]}
    workload |= {key: value for key, value in given.items() if value}
    return workload | {"duration": duration_for(options["rate"], options["peak_to_mean"])}


def duration_for(rate: str, peak_to_mean: str | None) -> str:
    """How much traffic to draw, in whole minutes.

    Enough requests for a p99 of the busiest minute, few enough to wait for, and enough minutes for one of them to be
    the peak that was asked for.
    """
    from tokenfleet.app.quantities import Unreadable, parse_positive, parse_rate_per_s

    try:
        rate_per_s = parse_rate_per_s(rate)
        peak = parse_positive(peak_to_mean) if peak_to_mean else 2.0
    except Unreadable:
        # Somebody else says what is wrong with them.
        return f"{_FEWEST_MINUTES}min"
    shapely = max(_FEWEST_MINUTES, math.ceil(peak / 0.9) + 1)
    return f"{max(shapely, min(_MOST_MINUTES, round(_REQUESTS / rate_per_s / 60.0)))}min"


def parts_of(workload: Mapping[str, Any]) -> int:
    """Into how many equal parts the demand is cut, so that one of them is few enough requests to replay."""
    from tokenfleet.app.quantities import Unreadable, parse_duration_s, parse_rate_per_s

    try:
        count = parse_rate_per_s(workload["mean_rate"]) * parse_duration_s(workload["duration"])
    except Unreadable:
        # Somebody else says what is wrong with it.
        return 1
    return max(1, math.ceil(count / _MOST_REQUESTS))


def _a_part(values: Mapping[str, Any], part: int) -> dict[str, Any]:
    if part == 1:
        return dict(values)
    from tokenfleet.app.quantities import parse_rate_per_s

    workload = values["workload"]
    return {**values, "workload": {**workload, "mean_rate": parse_rate_per_s(workload["mean_rate"]) / part}}


def _first_look(composition: "Composition") -> "Composition":
    return replace(composition, question=replace(composition.question, first_look=True))


def _standing_for(composition: "Composition", part: int, values: Mapping[str, Any]) -> "Composition":
    """The demand asked for, of which the trace is one of ``part`` parts."""
    if part == 1:
        return composition
    known = composition.workload
    whole = replace(
        known,
        request_count=known.request_count * part,
        mean_rate_per_s=known.mean_rate_per_s * part,
        peak_minute_rate_per_s=known.peak_minute_rate_per_s * part,
        joint_counts=known.joint_counts * part,
        minute_requests=known.minute_requests * part,
        minute_input_tokens=known.minute_input_tokens * part,
        minute_output_tokens=known.minute_output_tokens * part,
    )
    question = replace(composition.question, stands_for_count=part)
    resolved = {
        **composition.resolved,
        "replayed_in_parts": {"part_count": part, "mean_rate": values["workload"]["mean_rate"]},
    }
    return replace(composition, question=question, workload=whole, resolved=resolved)


def _beside(values: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """The same values with paths counted from the folder of the scenario they are saved to."""
    saved = dict(values)
    if Path(saved["model"]).exists():
        saved["model"] = os.path.relpath(saved["model"], folder)
    if "profile" in saved["workload"]:
        saved["workload"] = saved["workload"] | {"profile": os.path.relpath(saved["workload"]["profile"], folder)}
    return saved


def _next_step(save: Path | None, profile: str | None, *, feasible: bool) -> list[str]:
    if not feasible:
        return ["relax the promise as shown, or let it try other GPUs:  --gpu h200_sxm,b200_sxm,mi300x"]
    plan = f"tokenfleet plan {save}" if save else "add  --save chat.yaml  then  tokenfleet plan chat.yaml"
    real = [] if profile else ["your real traffic decides: put your log into the scenario as  workload: {trace: LOG}"]
    return [plan, *real]
