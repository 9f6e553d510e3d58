"""Options for what lies on a gpu beside the model, the same words for every command."""

from collections.abc import Callable, Mapping
from typing import Final

import click

BESIDE: Final = {
    "adapters": "--adapters",
    "adapter_rank": "--adapter-rank",
    "draft": "--draft",
    "image_tokens": "--image-tokens",
    "neighbours": "--neighbours",
    "safety": "--safety",
}
"""Keys of ``memory`` in a scenario by option."""
_OPTIONS: Final = (
    click.option("--adapters", help="LoRA adapters that stay in GPU memory together."),
    click.option("--adapter-rank", help="Their rank; the largest, where they differ."),
    click.option("--draft", help="Draft model of speculative decoding, or mtp for one prediction layer of the model."),
    click.option("--image-tokens", help="Tokens of images and video in the worst prompt. [default: one step's budget]"),
    click.option("--neighbours", help="Held by other processes on the same GPU, such as 10GiB."),
    click.option("--safety", help="Left free on purpose inside the engine's share, such as 2GiB."),
)


def beside_options(command: Callable[..., int]) -> Callable[..., int]:
    """Give a command the options; their values come as keywords named as the keys."""
    for option in reversed(_OPTIONS):
        command = option(command)
    return command


def beside_values(options: Mapping[str, object]) -> dict[str, object] | None:
    """What was asked for of all options, as ``memory`` of a scenario has it; ``None`` for nothing."""
    return {key: options[key] for key in BESIDE if options[key] is not None} or None


def beside_option(path: tuple[str | int, ...]) -> str:
    """The option behind a key of ``memory``; both about adapters where only together they make sense."""
    return BESIDE[str(path[1])] if len(path) > 1 else "--adapters"
