"""Names of people and teams, hashed on the way in."""

import hashlib
import hmac
from typing import TYPE_CHECKING

from tokenfleet.domain.errors import BadInput

if TYPE_CHECKING:
    import polars as pl

_COLUMNS = ("tenant", "session")
_DIGITS = 12
_SHORTEST_SALT = 8


def anonymized(rows: "pl.DataFrame", salt: str) -> "pl.DataFrame":
    """Replace tenant and session names by keyed hashes; request ids are dropped once they have told duplicates apart.

    HMAC-SHA256, cut to 48 bits: without the salt nobody can check a guess of a name.

    Args:
        rows: Canonical rows.
        salt: Secret text; keep it to recognise the same tenants again, throw it away to forget them.

    Raises:
        BadInput: a salt that can be guessed.
    """
    import polars as pl

    if len(salt) < _SHORTEST_SALT:
        raise BadInput.at("salt", f"has {len(salt)} characters", f"use at least {_SHORTEST_SALT}, drawn at random")
    for column in _COLUMNS:
        if column in rows.columns:
            names = rows[column].unique().drop_nulls()
            hashes = pl.Series([_hash(column, name, salt) for name in names.to_list()], dtype=pl.String)
            rows = rows.with_columns(pl.col(column).replace_strict(names, hashes, default=None, return_dtype=pl.String))
    return rows


def _hash(column: str, name: str, salt: str) -> str:
    digest = hmac.new(salt.encode(), f"{column}:{name}".encode(), hashlib.sha256).hexdigest()
    return f"{column}-{digest[:_DIGITS]}"
