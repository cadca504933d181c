"""Keeps tenants apart in vLLM's shared prefix cache.

A block's hash covers all tokens before it, and whatever `generate_block_hash_extra_keys` adds. From
the block with the first private token on, that is the tenant too: the public part of a prompt is
found by everybody, and what follows it by its tenant only.
"""

from __future__ import annotations

from typing import Any

from vllm.v1.core import block_pool, kv_cache_utils

from parrot_engine.backends.vllm.wire import Errand

TENANT = "parrot-tenant"


def install() -> None:
    """Makes vLLM's block hashes know tenants, in this process. May be called again."""
    plain = kv_cache_utils.generate_block_hash_extra_keys
    if getattr(plain, "knows_tenants", False):
        return

    def with_tenant(request: Any, start: int, end: int, first_feature: int) -> tuple[Any, int]:
        keys, feature = plain(request, start, end, first_feature)
        tenant = _tenant_at(request, end)
        return ((*(keys or ()), (TENANT, tenant)) if tenant else keys), feature

    with_tenant.knows_tenants = True  # type: ignore[attr-defined]
    # Both modules look the function up under their own name for it.
    kv_cache_utils.generate_block_hash_extra_keys = with_tenant
    block_pool.generate_block_hash_extra_keys = with_tenant


def _tenant_at(request: Any, end: int) -> str:
    """Whose the tokens before `end` are, as far as any of them is private."""
    errand = Errand.of(request)
    return errand.tenant if errand is not None and end > errand.public_tokens else ""
