"""Facts about models: what a model is to the broker, model lists, aliases, the free pool, abilities.

Packaged data and files that the user names; nothing is fetched on import or by itself.
"""

from __future__ import annotations

from llmbroker.catalog.config import LLMConfig
from llmbroker.catalog.limit import Limit
from llmbroker.catalog.lists import KeyHelp, ModelList, load_model_list, read_model_list
from llmbroker.catalog.packaged import (
    Abilities,
    Catalog,
    aliases,
    fetch_catalog,
    free_pool,
    home_catalog,
    keep_catalog,
    load_catalog,
)

__all__ = [
    "Abilities",
    "Catalog",
    "KeyHelp",
    "LLMConfig",
    "Limit",
    "ModelList",
    "aliases",
    "fetch_catalog",
    "free_pool",
    "home_catalog",
    "keep_catalog",
    "load_catalog",
    "load_model_list",
    "read_model_list",
]
