"""Floor 2: the past. Reads logs, says what is wrong with them, describes them, draws traffic like them.

Promises: rows read = rows kept + rows dropped, by reason; unknown is never 0; the same seed draws the same bytes.
Must not know replicas, prices or promises.
"""

from tokenfleet.workload.draw import draw_trace
from tokenfleet.workload.lengths import Lengths
from tokenfleet.workload.profile import profile
from tokenfleet.workload.read import format_names, read_trace
from tokenfleet.workload.trace_file import write_trace

__all__ = ["Lengths", "draw_trace", "format_names", "profile", "read_trace", "write_trace"]
