"""``tokenfleet memory``: does it fit, what eats the memory, how many sequences."""

from typing import TYPE_CHECKING, Final

import click

from tokenfleet.app.cli.beside import beside_option, beside_options, beside_values
from tokenfleet.app.cli.face import Block, Face, face_options

if TYPE_CHECKING:
    from tokenfleet.app.fit import Fit
    from tokenfleet.domain.replica import Deployment

_GIB: Final = 2**30
_BAR_WIDTH: Final = 24
_OPTIONS: Final = {
    "model": "--model",
    "gpu": "--gpu",
    "tensor_parallel": "--tp",
    "precision": "--precision",
    "kv_dtype": "--kv-dtype",
    "context": "--context",
    "engine": "--engine",
    "profile": "--profile",
}


@click.command("memory", short_help="Does the model fit, what eats the memory, how many sequences run.")
@click.option("--model", required=True, help="Name in the catalog, or path to a config.json.")
@click.option("--gpu", required=True, help="The accelerator, such as h100_sxm.")
@click.option("--tp", help="GPUs per replica (tensor parallel). [default: 1]")
@click.option("--precision", help="Weights: bf16, fp8, int8, int4... [default: the checkpoint's, else bf16]")
@click.option("--kv-dtype", default="bf16", help="KV cache: bf16 or fp8. [default: bf16]")
@click.option("--context", help="Prompt plus output of one sequence, in tokens. [default: the longest]")
@click.option("--engine", default="vllm", help="Engine, or engine and version. [default: vllm]")
@click.option(
    "--profile", type=click.Path(), help="Profile of real traffic: count sequences at its p50, p95 and longest."
)
@beside_options
@face_options
@click.pass_obj
def command(
    face: Face,
    /,
    model: str,
    gpu: str,
    tp: str | None,
    precision: str | None,
    kv_dtype: str,
    context: str | None,
    engine: str,
    profile: str | None,
    **beside: str | None,
) -> int:
    """Say whether the model fits on the GPU, what eats the memory, and how many sequences run at which context.

    When it does not fit, that is an answer too, with the smallest change that fits.
    """
    from tokenfleet.app.fit import fit_document
    from tokenfleet.app.fit_question import FitQuestion, answered
    from tokenfleet.app.scenario import checked

    face.action = "answer"
    given = {
        "model": model,
        "gpu": gpu,
        "tensor_parallel": tp,
        "precision": precision,
        "kv_dtype": kv_dtype,
        "context": context,
        "engine": engine,
        "profile": profile,
        "memory": beside_values(beside),
    }
    values = {key: value for key, value in given.items() if value is not None}
    found = answered(checked(FitQuestion, values, _option))
    if face.json:
        face.document(fit_document(found))
    else:
        face.blocks(_blocks(found))
    return 0


def _option(path: tuple[str | int, ...]) -> str:
    """The option behind a key of the question."""
    return beside_option(path) if path[0] == "memory" else _OPTIONS[str(path[0])]


def _blocks(found: "Fit") -> list[Block]:
    blocks: list[Block] = [({True: "Fits", False: "No", None: "Unknown"}[found.fits], _verdict(found))]
    if not found.fits and found.smallest:
        first, *others = map(_named, found.smallest)
        blocks.append(("Instead", [f"smallest that fits: {first}", *(f"or  {each}" for each in others)]))
    if found.budget is not None:
        blocks.append(("Memory", _terms(found)))
    if found.sequence_counts:
        blocks.append(("Holds", _sequences(found)))
    notes = [*_too_long(found), *(found.reasons if found.fits else ()), *found.model.notes]
    if notes:
        blocks.append(("Note", notes))
    return blocks


def _too_long(found: "Fit") -> list[str]:
    longest, asked = found.model.max_context_tokens, found.context_tokens
    if longest is None or asked is None or asked <= longest:
        return []
    return [f"{asked:,} tokens are more than the {longest:,} the model was made for"]


def _named(deployment: "Deployment") -> str:
    layout = deployment.layout
    parts = [f"TP{layout.tensor_parallel}"] if layout.tensor_parallel > 1 else []
    parts += [f"PP{layout.pipeline_parallel}"] if layout.pipeline_parallel > 1 else []
    parts.append("checkpoint precision" if deployment.precision == "checkpoint" else deployment.precision)
    return f"{layout.gpu_count} x {deployment.gpu} ({', '.join(parts)})"


def _verdict(found: "Fit") -> list[str]:
    from tokenfleet.performance import kv_bytes_per_token

    budget = found.budget
    deployment = found.deployment
    what = f"{found.model.name} on {_named(deployment)}, KV {deployment.kv_precision}, {deployment.engine.name}"
    if found.missing:
        growth = kv_bytes_per_token(found.model, deployment.layout, deployment.kv_precision)
        return [
            f"{what}: the catalog does not know enough of this model",
            *found.missing,
            f"KV cache: {growth:,} bytes per token on each GPU",
            "give the path of its config.json as --model",
        ]
    if budget is None or not budget.fits:
        return [f"{what} does not fit", *found.reasons]
    lines = [what]
    if budget.too_close_to_call:
        lines.append("too close to call: the verdict hangs on less than the uncertainty of the runtime terms")
    return lines


def _terms(found: "Fit") -> list[str]:
    budget = found.budget
    if budget is None:
        return []
    width = max(len(name) for name in budget.terms_bytes)
    lines = [f"{'on each GPU'.ljust(width)}  {'GiB':>7}"]
    for name, size in budget.terms_bytes.items():
        if size == 0 and name != "kv_cache":
            continue
        share = size / budget.total_bytes
        bar = "#" * round(min(1.0, share) * _BAR_WIDTH)
        lines.append(f"{name.replace('_', ' ').ljust(width)}  {size / _GIB:7.2f}  {share:4.0%}  {bar}".rstrip())
    needed = sum(budget.terms_bytes.values())
    if needed > budget.total_bytes:
        lines.append(f"{'needed'.ljust(width)}  {needed / _GIB:7.2f}")
    lines.append(f"{'the GPU has'.ljust(width)}  {budget.total_bytes / _GIB:7.2f}")
    return lines


def _sequences(found: "Fit") -> list[str]:
    budget = found.budget
    if budget is None:
        return []
    lines = [
        f"{budget.kv_capacity_tokens:,} tokens of KV in the replica; "
        f"{budget.kv_bytes_per_token:,} bytes per token on each GPU"
    ]
    if budget.kv_fixed_bytes_per_sequence:
        lines.append(f"and {budget.kv_fixed_bytes_per_sequence / _GIB:.3f} GiB fixed per sequence on each GPU")
    limit = found.deployment.engine.max_sequence_count
    for each in found.sequence_counts:
        held = ", the engine's own limit" if each.sequence_count >= limit else ""
        noun = "sequence " if each.sequence_count == 1 else "sequences"
        lines.append(f"{each.sequence_count:6,} {noun} of {each.context_tokens:,} tokens ({each.name}{held})")
    return lines
