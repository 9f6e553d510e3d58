"""Where work is spread: threads of this process, or the workers of a Ray cluster. The answer is the same."""

import logging
from collections.abc import Callable, Iterable, Iterator
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final, Literal

from tokenfleet.domain.errors import BadInput

if TYPE_CHECKING:
    from tokenfleet.workload.parts import Mapper

Executor = Literal["local", "ray"]

_PARTS_PER_WORKER: Final = 4
"""Parts handed out ahead of the one awaited: enough to keep workers busy, few enough for thousands of files."""


def mapper_of(executor: Executor, *, address: str | None = None) -> "Mapper | None":
    """What to hand to :func:`tokenfleet.workload.profile_files` as its ``mapper``.

    Args:
        executor: ``local``, or ``ray``: an optional extra. Workers must see the files under the same paths.
        address: Of a running Ray cluster; without one, ``RAY_ADDRESS`` or a cluster on this machine is used, which is
            started when there is none.

    Returns:
        ``None`` for threads of this process.

    Raises:
        BadInput: Ray is not installed.
    """
    if executor == "local":
        return None
    ray = ray_at(address)

    def apply(function: Callable[[Any], Any], parts: Iterable[Any]) -> Iterator[Any]:
        task = ray.remote(function)
        ahead = _PARTS_PER_WORKER * max(1, int(ray.cluster_resources().get("CPU", 1)))
        waiting: list[Any] = []
        for part in parts:
            if len(waiting) >= ahead:
                yield ray.get(waiting.pop(0))
            waiting.append(task.remote(part))
        while waiting:
            yield ray.get(waiting.pop(0))

    return apply


def ray_at(address: str | None) -> Any:  # noqa: ANN401 - the package is optional and has no types here
    """Ray, connected to the cluster at ``address``; see :func:`mapper_of`."""
    try:
        ray: Any = import_module("ray")
    except ImportError as error:
        raise BadInput.at("executor", "ray is not installed", "pip install 'tokenfleet[ray]'") from error
    if not ray.is_initialized():
        ray.init(address=address, log_to_driver=False, logging_level=logging.WARNING, include_dashboard=False)
    return ray
