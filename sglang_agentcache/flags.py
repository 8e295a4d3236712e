"""Our command-line flags: SGLang's parser takes none from plugins.

The launcher takes them off the command line and sets environment variables, which all of SGLang's processes
inherit. The variables alone do the same, for `sglang serve`.
"""

from __future__ import annotations

import argparse
import math
import os
from collections.abc import MutableMapping, Sequence
from typing import NoReturn

from .config import ConfigError
from .disagg.settings import PREFILL_URL, SECRET, SECRET_FILE, SECRET_FLAG, URL_FLAG, channel_settings, secret
from .scheduling.order import DEFAULT_PATIENCE, PREFIX_AWARE

PREFIX = "--agentcache-"
CALL_LOG = "SGLANG_AGENTCACHE_CALL_LOG"
CALL_LOG_BYTES = "SGLANG_AGENTCACHE_CALL_LOG_BYTES"
PATIENCE = "SGLANG_AGENTCACHE_PATIENCE"
ADMISSION = "SGLANG_AGENTCACHE_ADMISSION"

ADMISSIONS = ("off", "auto")
DEFAULT_BYTES = 64 << 20
MIN_BYTES = 64 << 10


class _Parser(argparse.ArgumentParser):
    def error(self, message: str) -> NoReturn:
        raise ConfigError(message)


def parser() -> argparse.ArgumentParser:
    """Our flags, for parsing and for `--help`."""
    made = _Parser(
        prog="python -m sglang_agentcache.launch_server",
        usage=argparse.SUPPRESS,
        add_help=False,
        allow_abbrev=False,
    )
    flags = made.add_argument_group("agentcache (besides SGLang's own flags, below)")
    flags.add_argument(
        PREFIX + "call-log",
        metavar="FILE",
        help=f"log every tool call with its duration, for sglang_agentcache.train; also {CALL_LOG}",
    )
    flags.add_argument(
        PREFIX + "call-log-bytes",
        metavar="N",
        help=f"size of the log and its predecessor FILE.1 together (default {DEFAULT_BYTES}); also {CALL_LOG_BYTES}",
    )
    flags.add_argument(
        PREFIX + "patience",
        metavar="X",
        help=f"--schedule-policy {PREFIX_AWARE}: later requests overtake one for at most X prefill tokens per token "
        f"that it needs (default {DEFAULT_PATIENCE:g}; 0 is fcfs, inf never ages); also {PATIENCE}",
    )
    flags.add_argument(
        PREFIX + "admission",
        metavar="MODE",
        help="auto: first requests of new trajectories wait while there is no room for them and re-prefill slows "
        f"everybody; off (the default): they do not; also {ADMISSION}",
    )
    flags.add_argument(
        URL_FLAG,
        metavar="URL[,URL...]",
        help="decode workers: prefill workers to tell of each request's end and tool calls (needs the secret); "
        f"also {PREFILL_URL}",
    )
    flags.add_argument(
        SECRET_FLAG,
        metavar="FILE",
        help=f"prefill and decode workers: holds the secret they share; also {SECRET_FILE}, or {SECRET} itself",
    )
    return made


def take(argv: Sequence[str], environment: MutableMapping[str, str] = os.environ) -> list[str]:
    """Set the environment variables that our flags ask for, and return the other arguments.

    Raises:
        ConfigError: an unknown flag of ours, or a value that is not allowed.
    """
    given, rest = parser().parse_known_args(list(argv))
    for arg in rest:
        if arg.startswith(PREFIX):
            raise ConfigError(
                f"unknown flag {arg.partition('=')[0]}; allowed are {PREFIX}call-log, {PREFIX}call-log-bytes, "
                f"{PREFIX}patience, {PREFIX}admission, {URL_FLAG}, {SECRET_FLAG}"
            )
    for name, value in (
        (CALL_LOG, given.agentcache_call_log),
        (CALL_LOG_BYTES, given.agentcache_call_log_bytes),
        (PATIENCE, given.agentcache_patience),
        (ADMISSION, given.agentcache_admission),
        (PREFILL_URL, given.agentcache_prefill_url),
        (SECRET_FILE, given.agentcache_secret_file),
    ):
        if value is not None:
            environment[name] = value
    check(environment)
    return rest


def call_log_bytes(environment: MutableMapping[str, str] = os.environ) -> int:
    """How large the call log may become.

    Raises:
        ConfigError: not an integer of at least `MIN_BYTES`.
    """
    value = environment.get(CALL_LOG_BYTES, str(DEFAULT_BYTES))
    if not value.isascii() or not value.isdigit() or int(value) < MIN_BYTES:
        raise ConfigError(
            f"{PREFIX}call-log-bytes ({CALL_LOG_BYTES}) must be an integer of at least {MIN_BYTES}; got {value!r}"
        )
    return int(value)


def patience(environment: MutableMapping[str, str] = os.environ) -> float:
    """How long a request of `--schedule-policy prefix-aware` lets others pass, see `scheduling.order`.

    Raises:
        ConfigError: not a number of at least 0.
    """
    text = environment.get(PATIENCE, str(DEFAULT_PATIENCE))
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not value >= 0:
        raise ConfigError(f"{PREFIX}patience ({PATIENCE}) must be a number of at least 0; got {text!r}")
    return value


def admission(environment: MutableMapping[str, str] = os.environ) -> str:
    """Whether trajectories wait at the door, one of `ADMISSIONS`.

    Raises:
        ConfigError: another value.
    """
    value = environment.get(ADMISSION, "off")
    if value not in ADMISSIONS:
        raise ConfigError(
            f"{PREFIX}admission ({ADMISSION}) must be one of {', '.join(ADMISSIONS)}; got {value!r}"
        )
    return value


def check(environment: MutableMapping[str, str]) -> None:
    """Check our environment variables; raises as `call_log_bytes`, `patience`, `admission` and `channel_settings`."""
    call_log_bytes(environment)
    patience(environment)
    admission(environment)
    secret(environment)
    channel_settings(environment)
    if environment.get(CALL_LOG) == "":
        raise ConfigError(f"{PREFIX}call-log ({CALL_LOG}) must name a file")
