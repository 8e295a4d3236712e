"""The scheduler tells the cache when a request arrives and leaves.

Target: ``scheduler.Scheduler``, SGLang 0.5.23. SGLang names its scheduler class where it runs it; a REPLACE hook is
its documented way to extend it. Imported only where a scheduler runs.
"""

from sglang_agentcache.patches.fingerprint import Patch
from sglang_agentcache.scheduling.scheduler import AgentScheduler

PATCH = Patch(
    target="sglang.srt.managers.scheduler.Scheduler",
    kind="REPLACE",
    hook=AgentScheduler,
    versions=("0.5.23",),
    fingerprint="f66043c88deb58f8cf8dc7b527e1a2d717c3739a35335d209c7462f8a5f54a89",
)
