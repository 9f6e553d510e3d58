"""Floor 4: measured against predicted: data lint, validation, intervals, fitting.

Promises: rows are excluded by a written rule and never by their residual; errors are reported on left-out models
and gpus. It replays, so it stands above the simulator. Must not choose a fleet.
"""
