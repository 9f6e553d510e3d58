"""Hand-made signals."""

from tokenfleet.control import Signals


def signals(time_s=0.0, *, waiting=(0,), running=None, kv=None, starting=0, arrived=0, refused=0, ttft=None, **more):
    """A tick as an autoscaler sees it; per replica: requests waiting and running, KV share."""
    running = tuple(running) if running is not None else (0,) * len(waiting)
    return Signals(
        time_s=time_s,
        ready_count=len(waiting),
        starting_count=starting,
        waiting=tuple(waiting),
        running=running,
        kv_used_fraction=tuple(kv) if kv is not None else (0.0,) * len(waiting),
        arrived_count=arrived,
        refused_count=refused,
        held_count=sum(waiting) + sum(running),
        ttft_p90_s=ttft,
        **more,
    )
