"""A week of 27 million requests on 100 replicas, with the trace in memory: time and memory of one process.

    python benchmarks/week.py [--share 0.1] [--json]

Lengths and count are those published of the Azure conversation trace of 2024 (27.3 million requests in a week), drawn
by the synthesizer: log-normal lengths, a peak of three times the mean, bursty arrivals. ``--share`` replays a part of
the week.
"""

import argparse
import json
import resource
import time

from replay import machine, one_replica
from tokenfleet import workload
from tokenfleet.domain.fleet import Fleet, ReplicaGroup
from tokenfleet.simulator import replay, warm_up

WEEK_S = 604_800.0
REQUESTS = 27_000_000


def main() -> None:
    """Draw, replay, print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="part of the week")
    parser.add_argument("--json", action="store_true")
    asked = parser.parse_args()
    warm_up(print)
    start_s = time.perf_counter()
    trace = workload.draw_trace(
        workload.Lengths.parse("930:3700"),
        workload.Lengths.parse("80:420"),
        mean_rate_per_s=REQUESTS / WEEK_S,
        peak_to_mean=3.0,
        interarrival_cv=2.0,
        duration_s=WEEK_S * asked.share,
        seed=1,
    )
    drawn_s = time.perf_counter()
    fleet = Fleet(groups=(ReplicaGroup(replica=one_replica(), replica_count=100),))
    record = replay(trace, fleet)
    replayed_s = time.perf_counter()
    found = {
        "request_count": trace.request_count,
        "draw_s": round(drawn_s - start_s, 2),
        "replay_s": round(replayed_s - drawn_s, 2),
        "busy_fraction": round((record.busy.prefill_s + record.busy.decode_s) / record.end_s / 100, 3),
        "peak_memory_bytes": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024,
        "machine": machine(),
    }
    print(json.dumps(found) if asked.json else "\n".join(f"{name:20s} {value}" for name, value in found.items()))


if __name__ == "__main__":
    main()
