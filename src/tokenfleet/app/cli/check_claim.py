"""``tokenfleet check-claim``: a claim held against the arithmetic that decides it."""

from pathlib import Path
from typing import Any, Final

import click

from tokenfleet.app.cli.face import Face, face_options

_KINDS: Final = ("contract", "token-price", "break-even", "speed-up", "saving", "precision", "disaggregation")


@click.command("check-claim", short_help="Check a claimed saving, break-even or speed-up at equal GPUs.")
@click.argument("kind", type=click.Choice(_KINDS))
@click.option("--claimed", help="What is claimed: 2x, $0.15, 22%, or a range: 2-7x.")
@click.option("--sequences", help="Sequences that run at once. [contract, precision]")
@click.option("--rate", help="Requests per second. [contract]")
@click.option("--ttft", help="Mean time to first token. [contract]")
@click.option("--tpot", help="Mean time per output token. [contract]")
@click.option("--output", help="Mean output tokens, where claimed. [contract]")
@click.option("--usd-per-hour", help="The whole bill of an hour. [token-price]")
@click.option("--tokens-per-s", help="Tokens per second while busy. [token-price]")
@click.option("--busy", help="Share of the time with work; 100% if left out. [token-price]")
@click.option("--own", help="Dollars per available hour of an owned GPU, all included. [break-even]")
@click.option("--rent", help="Dollars per rented GPU-hour. [break-even]")
@click.option("--before", help="Tokens or requests per second, or the bill, before. [speed-up, saving]")
@click.option("--after", help="The same afterwards. [speed-up, saving]")
@click.option("--before-gpus", help="GPUs before. [speed-up]")
@click.option("--after-gpus", help="GPUs afterwards. [speed-up]")
@click.option("--before-units", help="What was served for the bill before: tokens, requests, tasks. [saving]")
@click.option("--after-units", help="The same afterwards. [saving]")
@click.option("--model", help="Name in the catalog, or path to a config.json. [precision]")
@click.option("--gpu", help="GPU. [precision, disaggregation]")
@click.option("--tp", help="GPUs per replica; 1 if left out. [precision]")
@click.option("--before-precision", help="Weights before: bf16... [precision]")
@click.option("--after-precision", help="Weights afterwards: fp8, int4... [precision]")
@click.option("--context", help="Mean context of a sequence in tokens. [precision]")
@click.option("--scenario", type=click.Path(path_type=Path), help="Demand, model, gpu and promise. [disaggregation]")
@click.option("--gpus", help="GPUs of each way; one node if left out. [disaggregation]")
@click.option("--link", help="What KV crosses; the scenario's if left out. [disaggregation]")
@face_options
@click.pass_obj
def command(face: Face, /, kind: str, **options: Any) -> int:  # noqa: ANN401 - click's options by name
    """Hold a claim of KIND against the arithmetic that decides it; 5 % of rounding is forgiven, but of a contract.

    A speed-up or saving is claimed to be so much at least, a price so much at most, a break-even to be that point; a
    range (2-7x) is supported where the figure lies in it.

    contract: sequences, rate and latencies by Little's law. token-price: from the bill. break-even: owning against
    rent. speed-up and saving: brought to equal GPUs and equal work. precision: decode throughput from the step times of
    the model. disaggregation: prefill and decode apart against one fleet on as many GPUs, by replay of the demand of a
    scenario, every split tried. Exits with 1 when the claim is refuted.
    """
    from tokenfleet.app.claim_question import KINDS, DisaggregationClaim
    from tokenfleet.app.cli.progress import shown
    from tokenfleet.app.scenario import checked

    face.action = "check"
    given = {"kind": kind, **{name: value for name, value in options.items() if value is not None}}
    asked = checked(KINDS[kind], given, lambda path: f"--{path[0]}".replace("_", "-") if path else kind)
    with shown(face) as teller:
        found = asked.check_on(teller) if isinstance(asked, DisaggregationClaim) else asked.check()
    if face.json:
        face.document(
            {
                "kind": kind,
                "claim": found.claim,
                "supported": found.supported,
                "claimed": found.claimed.low,
                "claimed_high": found.claimed.high,
                "position": found.position,
                "found": found.found,
                "arithmetic": list(found.arithmetic),
            }
        )
    else:
        verdict = "supported" if found.supported else "refuted"
        if found.position is not None:
            verdict += f": {found.position} what is claimed"
        face.blocks([("Claim", [found.claim]), ("Answer", [verdict]), ("Because", list(found.arithmetic))])
    return 0 if found.supported else 1
