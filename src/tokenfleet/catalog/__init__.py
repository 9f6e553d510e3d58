"""Floor 1: facts as files: accelerators, models, engines, prices; every row with unit, source and date.

Owns the shipped tables, the names people write for one thing, and the reading of a model's ``config.json``.
Promises: one canonical name per thing; an unknown name fails with the nearest ones. Must not compute physics
or choose anything.
"""

from tokenfleet.catalog.cold_start import ColdStartFact, ColdStartStage, Storage, cold_start_facts
from tokenfleet.catalog.config import read_config
from tokenfleet.catalog.engines import engine, engine_names
from tokenfleet.catalog.gpus import gpu, gpus
from tokenfleet.catalog.links import link, link_names, link_words
from tokenfleet.catalog.models import model, model_names
from tokenfleet.catalog.prices import ApiPrice, api_prices, gpu_prices, reference_price

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
    "read_config",
    "reference_price",
]
