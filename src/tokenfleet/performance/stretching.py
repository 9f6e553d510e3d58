"""The same replica, faster or slower as a whole: needs none of what its steps are made of."""

from dataclasses import replace

import numpy as np

from tokenfleet.domain.replica import StepTimeModel


def scaled(step_time: StepTimeModel, factor: float) -> StepTimeModel:
    """The same replica, every duration multiplied by a factor.

    Args:
        step_time: The model.
        factor: Positive; an error band's factor or its inverse, or a calibration.

    Returns:
        The scaled model.
    """
    return replace(
        step_time,
        token_ps=np.rint(step_time.token_ps * factor).astype(np.int64),
        sequence_ps=round(step_time.sequence_ps * factor),
        context_ps=round(step_time.context_ps * factor),
        window_ps=round(step_time.window_ps * factor),
        pair_ps=round(step_time.pair_ps * factor),
        window_pair_ps=round(step_time.window_pair_ps * factor),
        eager_ps=round(step_time.eager_ps * factor),
        request_ps=round(step_time.request_ps * factor),
        draft_ps=None if step_time.draft_ps is None else np.rint(step_time.draft_ps * factor).astype(np.int64),
    )
