"""Floor 1: facts as files: accelerators, models, engines, prices; every row with unit, source and date.

Owns the shipped tables, the names people write for one thing, and the reading of a model's ``config.json``.
Promises: one canonical name per thing; an unknown name fails with the nearest ones. Must not compute physics
or choose anything.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from tokenfleet.catalog.cold_start import ColdStartFact, ColdStartStage, Storage, cold_start_facts
    from tokenfleet.catalog.config import read_config
    from tokenfleet.catalog.engines import engine, engine_names
    from tokenfleet.catalog.gpu_table import gpu, gpus
    from tokenfleet.catalog.links import link, link_names, link_words
    from tokenfleet.catalog.models import model, model_names
    from tokenfleet.catalog.prices import ApiPrice, api_prices, gpu_prices, providers, reference_price
    from tokenfleet.catalog.prices_level import offers

_HOME = {
    "ApiPrice": "prices",
    "ColdStartFact": "cold_start",
    "ColdStartStage": "cold_start",
    "Storage": "cold_start",
    "api_prices": "prices",
    "cold_start_facts": "cold_start",
    "engine": "engines",
    "engine_names": "engines",
    "gpu": "gpu_table",
    "gpu_prices": "prices",
    "gpus": "gpu_table",
    "link": "links",
    "link_names": "links",
    "link_words": "links",
    "model": "models",
    "model_names": "models",
    "offers": "prices_level",
    "providers": "prices",
    "read_config": "config",
    "reference_price": "prices",
}
"""What is loaded on first use: few questions need every table."""

__all__ = [
    "ApiPrice",
    "ColdStartFact",
    "ColdStartStage",
    "Storage",
    "api_prices",
    "cold_start_facts",
    "engine",
    "engine_names",
    "gpu",
    "gpu_prices",
    "gpus",
    "link",
    "link_names",
    "link_words",
    "model",
    "model_names",
    "offers",
    "providers",
    "read_config",
    "reference_price",
]


def __getattr__(name: str) -> Any:  # noqa: ANN401 - any public name
    """Load a table when it is first asked for."""
    if name not in _HOME:
        raise AttributeError(f"module 'tokenfleet.catalog' has no attribute '{name}'")
    found = getattr(import_module(f"tokenfleet.catalog.{_HOME[name]}"), name)
    globals()[name] = found  # some names are asked for thousands of times
    return found
