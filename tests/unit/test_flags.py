"""Our flags: taken off the command line, checked, and turned into environment variables."""

import math

import pytest

from sglang_agentcache import flags
from sglang_agentcache.config import ConfigError
from sglang_agentcache.scheduling import order

SGLANG = ["--model-path", "m", "--radix-eviction-policy", "convex"]


@pytest.mark.parametrize("given", [["--agentcache-call-log", "calls"], ["--agentcache-call-log=calls"]])
def test_flags_become_variables_and_the_rest_goes_to_sglang(given):
    environment: dict[str, str] = {}
    rest = flags.take([*SGLANG[:2], *given, "--agentcache-call-log-bytes", "65536", *SGLANG[2:]], environment)
    assert rest == SGLANG
    assert environment == {flags.CALL_LOG: "calls", flags.CALL_LOG_BYTES: "65536"}
    assert flags.call_log_bytes(environment) == 65_536


def test_variables_stay_where_no_flag_is_given():
    environment = {flags.CALL_LOG: "calls"}
    assert flags.take(SGLANG, environment) == SGLANG
    assert environment == {flags.CALL_LOG: "calls"}
    assert flags.call_log_bytes(environment) == flags.DEFAULT_BYTES


@pytest.mark.parametrize(
    ("given", "named"),
    [
        (["--agentcache-log", "x"], "unknown flag --agentcache-log; allowed are --agentcache-call-log"),
        (["--agentcache-call", "x"], "unknown flag --agentcache-call;"),
        (["--agentcache-call-log"], "--agentcache-call-log: expected one argument"),
        (["--agentcache-call-log", ""], r"--agentcache-call-log \(.*\) must name a file"),
        (["--agentcache-call-log-bytes", "1e9"], "--agentcache-call-log-bytes .* integer of at least 65536"),
        (["--agentcache-call-log-bytes", "10"], "at least 65536; got '10'"),
        (["--agentcache-call-log-bytes", "-5"], "--agentcache-call-log-bytes"),
        (["--agentcache-patience", "-1"], "--agentcache-patience .* number of at least 0; got '-1'"),
        (["--agentcache-patience", "nan"], "at least 0; got 'nan'"),
        (["--agentcache-patience", "fcfs"], "at least 0; got 'fcfs'"),
    ],
)
def test_what_is_wrong_is_named(given, named):
    with pytest.raises(ConfigError, match=named):
        flags.take([*SGLANG, *given], {})


def test_patience_is_a_number_with_a_default():
    environment: dict[str, str] = {}
    assert flags.patience(environment) == order.DEFAULT_PATIENCE
    for text, value in (("0", 0.0), ("2.5", 2.5), ("inf", math.inf)):
        assert flags.take(["--agentcache-patience", text], environment) == []
        assert environment == {flags.PATIENCE: text}
        assert flags.patience(environment) == value


def test_help_names_flags_and_variables():
    text = flags.parser().format_help()
    for name in (
        "--agentcache-call-log FILE",
        "--agentcache-call-log-bytes N",
        "--agentcache-patience X",
        *(flags.CALL_LOG, flags.CALL_LOG_BYTES, flags.PATIENCE),
    ):
        assert name in text
