"""A policy name of ours selects our cache class, without ``--radix-cache-backend``.

Target: ``registry.default_radix_cache_factory``, SGLang 0.5.23. The backend registry is asked only if the flag is
given, and setting the flag for the user would also refuse what SGLang allows for its default backend alone.
Imported only where a scheduler runs.
"""

from sglang_agentcache.cache.factory import choose_cache
from sglang_agentcache.patches.fingerprint import Patch

PATCH = Patch(
    target="sglang.srt.mem_cache.registry.default_radix_cache_factory",
    kind="AROUND",
    hook=choose_cache,
    versions=("0.5.23",),
    fingerprint="8ba18fde63a5f7556897c1dcd391277436d6ce00d6e2e19a6418ff54ff6bb560",
)
