"""Calls that failed, were turned away or lost their counts: told from retries, and given lengths when asked."""

from typing import TYPE_CHECKING

import numpy as np

from tokenfleet.workload.streams import stream

if TYPE_CHECKING:
    import polars as pl

RETRY_WITHIN_S = 120
"""A call of the same session and model that succeeds this soon after one that did not is its retry."""

RETRIED = "retried: the call that succeeded is kept"
UNMET = (
    "rejected, unmet demand",
    "failed",
    "output tokens unknown",
    "output tokens 0: failed or cut",
    "input tokens unknown",
)
"""Reasons for which a row was real demand whose size is not known."""


def retried() -> "pl.Expr":
    """Marks rejected and failed calls that a success of the same session and model follows; rows sorted by time."""
    import polars as pl

    success = pl.when(pl.col("status") == "ok").then(pl.col("arrival_ns"))
    later = success.fill_null(strategy="backward").over("session", "model")
    soon = (later - pl.col("arrival_ns")).is_between(0, RETRY_WITHIN_S * 1_000_000_000)
    return pl.col("status").is_in(["rejected", "error"]) & pl.col("session").is_not_null() & soon


def imputed(marked: "pl.DataFrame", kept: "pl.DataFrame") -> "pl.DataFrame":
    """Give rows of unknown size the lengths of a random kept row of their model, or of any where it has none.

    A known input stays; input and output otherwise come from the same row, so that their joint shape holds. The draw
    is seeded and depends only on the number of rows.

    Args:
        marked: All rows, with their ``reason`` or null.
        kept: The rows that need nothing.

    Returns:
        The rows whose reason is one of :data:`UNMET`, with lengths.
    """
    import polars as pl

    lost = marked.filter(pl.col("reason").is_in(UNMET)).drop("reason")
    if lost.is_empty() or kept.is_empty():
        return lost.clear()
    models = kept["model"].fill_null("").to_numpy()
    wanted = lost["model"].fill_null("").to_numpy()
    place = stream(0, "imputed lengths").random(len(wanted))
    donor = (place * len(models)).astype(np.int64)
    for model in np.unique(wanted):
        same = np.flatnonzero(models == model)
        if len(same):
            mine = wanted == model
            donor[mine] = same[(place[mine] * len(same)).astype(np.int64)]
    given = kept[donor].select("input_tokens", "output_tokens")
    has_input = pl.col("input_tokens") >= 1
    has_output = pl.col("output_tokens") >= 1
    return lost.with_columns(
        input_tokens=pl.when(has_input).then(pl.col("input_tokens")).otherwise(given["input_tokens"]),
        output_tokens=pl.when(has_output).then(pl.col("output_tokens")).otherwise(given["output_tokens"]),
    )
