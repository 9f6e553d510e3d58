"""Names of people and teams, hashed on the way in."""

import hashlib
import hmac
from collections.abc import Iterable
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

    _must_be_secret(salt)
    for column in _COLUMNS:
        if column in rows.columns:
            names = rows[column].unique().drop_nulls()
            hashes = pl.Series(hashed_names(column, names.to_list(), salt), dtype=pl.String)
            rows = rows.with_columns(pl.col(column).replace_strict(names, hashes, default=None, return_dtype=pl.String))
    return rows


def hashed_names(column: str, names: Iterable[str], salt: str) -> tuple[str, ...]:
    """The keyed hash of each name of a column, as :func:`anonymized` makes it.

    Raises:
        BadInput: a salt that can be guessed.
    """
    _must_be_secret(salt)
    return tuple(_hash(column, name, salt) for name in names)


def _must_be_secret(salt: str) -> None:
    if len(salt) < _SHORTEST_SALT:
        raise BadInput.at("salt", f"has {len(salt)} characters", f"use at least {_SHORTEST_SALT}, drawn at random")


def _hash(column: str, name: str, salt: str) -> str:
    digest = hmac.new(salt.encode(), f"{column}:{name}".encode(), hashlib.sha256).hexdigest()
    return f"{column}-{digest[:_DIGITS]}"
