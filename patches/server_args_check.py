"""Settings that do not fit stop the server with one sentence, before a model loads.

Target: ``ServerArgs.check_server_args``, SGLang 0.5.23, which every way of starting an engine calls once. Plugins
may add policy names, but have no say in checking the arguments that go with them.
"""

from typing import Any

from sglang_agentcache.config import ConfigError
from sglang_agentcache.patches.fingerprint import Patch
from sglang_agentcache.support import check, check_admission, check_channel, check_schedule, is_wanted


def check_agentcache_args(_result: None, server_args: Any) -> None:
    """Check the arguments of a server that wants our cache or our order; others pass untouched.

    Raises:
        SystemExit: started from a command line.
        ConfigError: started from Python.
    """
    from sglang.srt.arg_groups.overrides import resolving_view
    from sglang.srt.configs.model_config import ModelConfig
    from sglang.srt.mem_cache.kv_cache_builder import uses_ssm_state

    args = resolving_view(server_args)
    try:
        check_schedule(args)
        check_admission(args)
        check_channel(args)
        if is_wanted(args):
            model = ModelConfig.from_server_args(server_args)
            check(args, model, uses_ssm=uses_ssm_state(model))
    except ConfigError as error:
        # prepare_server_args leaves this mark on arguments that came from a command line.
        if getattr(server_args, "_launch_command", None) is not None:
            raise SystemExit(f"agentcache: {error}") from None
        raise


PATCH = Patch(
    target="sglang.srt.server_args.ServerArgs.check_server_args",
    kind="AFTER",
    hook=check_agentcache_args,
    versions=("0.5.23",),
    fingerprint="84a23bc7327d02463392aee79a82a1788fe430c65d78b82b60cbf5df1a6b042b",
)
