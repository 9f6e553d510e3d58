"""The command line: one file per command, each imported only when it is asked for.

Results go to stdout, everything else (progress, notes, problems) to stderr. Exit codes: 0 an answer, infeasible
included; 1 a check the person asked for fails; 2 input that cannot be used; 70 a bug of ours; 130 stopped by hand.
"""

import atexit
import gc
import os
import sys
from collections.abc import Sequence
from difflib import get_close_matches
from importlib import import_module
from typing import Final

import click

from tokenfleet.app.cli.face import Border, Face, ReaderGone, face_options

COMMANDS: Final = {
    "capacity": "What one replica can do on each GPU: tokens/s, waiting, memory, price.",
    "contract": "Does a contract still hold: day, digests, drills, what it survives.",
    "drill": "Go through the bad days of a fleet: ramp, burst, losses, rollout, flood.",
    "estimate": "Size a fleet in the first minute, without any file.",
    "init": "Write a commented scenario from a few questions.",
    "levers": "What each way to save would save, re-planned, with its price in latency.",
    "memory": "Does the model fit, what eats the memory, how many sequences run.",
    "pack": "Put the fleets of several scenarios on shared nodes.",
    "plan": "Find the cheapest fleet that keeps the promise; write plan, contract and report.",
    "profile": "Say what is wrong with a log, and what its traffic is like.",
    "scaling": "Compare ways to scale: GPU-hours against minutes with a broken promise.",
    "showback": "Who pays for a running fleet, from its counters.",
    "simulate": "Replay the traffic on a fleet you name, and say what holds it up.",
    "size": "Find how many replicas each pool of a scenario needs.",
    "spike": "What an event takes, and how large a burst the fleet rides out.",
    "synth": "Draw traffic like a profile, or of a preset.",
    "tiers": "What a premium tier costs: replicas of its own, or the front of the queue.",
    "check-claim": "Check a claimed saving, break-even or speed-up at equal GPUs.",
    "review": "Find the mistakes people make in a scenario, plan, sizing sheet or benchmark.",
    "validate": "Predict measured runs and say how far off the predictions are.",
    "calibrate": "Learn corrections from a few measured runs of your own.",
}
"""Every command and its line in the help, so that the help imports none of them."""


class LazyGroup(click.Group):
    """A group whose commands live in modules of the same name and load when they are called."""

    def list_commands(self, ctx: click.Context) -> list[str]:  # noqa: ARG002 - the signature is click's
        """Names of all commands, in the order of the road."""
        return list(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:  # noqa: ARG002 - the signature is click's
        """Import the command's module, or ``None`` for a name nobody knows."""
        if cmd_name not in COMMANDS:
            return None
        command = import_module(f"tokenfleet.app.cli.{cmd_name.replace('-', '_')}").command
        if not isinstance(command, click.Command):
            raise TypeError(f"{cmd_name} has no click command")
        return command

    def invoke(self, ctx: click.Context) -> object:
        """Run the command; a pipe that breaks meanwhile is not for click to end."""
        try:
            return super().invoke(ctx)
        except BrokenPipeError:
            raise ReaderGone from None

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Find the command, and name the nearest when there is none."""
        name = args[0]
        if name not in COMMANDS and not name.startswith("-"):
            near = get_close_matches(name, COMMANDS, n=2, cutoff=0.5)
            hint = f"nearest: {', '.join(near)}" if near else f"commands: {', '.join(COMMANDS)}"
            raise click.UsageError(f'no command "{name}"; {hint}', ctx)
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:  # noqa: ARG002 - the signature is click's
        """List the commands without importing them."""
        with formatter.section("Commands"):
            formatter.write_dl(list(COMMANDS.items()))


def _show_version(ctx: click.Context, _option: click.Parameter, wanted: bool) -> None:
    if wanted and not ctx.resilient_parsing:
        from tokenfleet import __version__

        click.echo(f"tokenfleet {__version__}")
        ctx.exit()


@click.group(
    cls=LazyGroup,
    invoke_without_command=True,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 100},
    epilog="First minute:  tokenfleet estimate --model meta-llama/Llama-3.3-70B-Instruct --rate 20 "
    "--input 700:1500 --output 140:300 --ttft-p99 2s --itl-p99 50ms",
)
@click.option(
    "--version",
    is_flag=True,
    is_eager=True,
    expose_value=False,
    callback=_show_version,
    help="Show the version and exit.",
)
@face_options
@click.pass_context
def root(ctx: click.Context) -> None:
    """Plan the capacity and cost of LLM inference: from traffic to a fleet you can promise."""
    if ctx.invoked_subcommand is None:
        click.echo(ctx.get_help())


LAZY_COLLECTOR: Final = 50_000
"""Objects between two looks of the garbage collector: by default it takes a twentieth of a short command."""


def main(arguments: Sequence[str] | None = None) -> None:
    """Run the command line and exit with the code of what happened."""
    gc.set_threshold(LAZY_COLLECTOR)
    # Nobody misses what is left at the end; looking through it takes another twentieth.
    atexit.register(gc.freeze)
    # Nothing here multiplies large matrices, and threads that wait for some take a tenth of a second to start.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    # No plugin is meant to look into scenarios, and to find none the metadata of every installed package are read.
    os.environ.setdefault("PYDANTIC_DISABLE_PLUGINS", "__all__")
    typed = list(sys.argv[1:] if arguments is None else arguments)
    # An option that cannot be parsed stops the parser before it sees --json, and a machine reads that error too.
    face = Face(json="--json" in typed)
    border = Border(face)
    with border:
        answer = root.main(args=typed, prog_name="tokenfleet", standalone_mode=False, obj=face)
        border.exit_code = answer if isinstance(answer, int) else 0
        sys.stdout.flush()
    sys.exit(border.exit_code)
