from pathlib import Path

import pytest

from sglang_agentcache.config import ConfigError
from sglang_agentcache.disagg.settings import (
    PREFILL_URL,
    SECRET,
    SECRET_FILE,
    ChannelSettings,
    channel_settings,
    secret,
)
from sglang_agentcache.flags import take

GOOD = "0123456789abcdef"


def test_addresses_and_secret() -> None:
    given = {PREFILL_URL: "http://one:30000/, https://two,http://one:30000", SECRET: GOOD}
    assert channel_settings(given) == ChannelSettings(("http://one:30000", "https://two"), GOOD)
    assert channel_settings({SECRET: GOOD}) is None
    assert secret({}) is None


def test_the_secret_may_be_in_a_file(tmp_path: Path) -> None:
    file = tmp_path / "secret"
    file.write_text(GOOD + "\n")
    environment: dict[str, str] = {}
    rest = take(
        ["--agentcache-prefill-url", "http://p:1", "--agentcache-secret-file", str(file), "--port", "1"],
        environment,
    )
    assert rest == ["--port", "1"]
    assert channel_settings(environment) == ChannelSettings(("http://p:1",), GOOD)
    assert GOOD not in str(environment)


@pytest.mark.parametrize(
    ("environment", "named"),
    [
        ({PREFILL_URL: "http://p:1"}, "needs the secret"),
        ({PREFILL_URL: "", SECRET: GOOD}, "http://host:port"),
        ({PREFILL_URL: "p:30000", SECRET: GOOD}, "http://host:port"),
        ({PREFILL_URL: "http://p:99999", SECRET: GOOD}, "http://host:port"),
        ({PREFILL_URL: "http://p/path", SECRET: GOOD}, "http://host:port"),
        ({PREFILL_URL: "http://user:word@p", SECRET: GOOD}, "http://host:port"),
        ({SECRET: "short"}, "16 to 1024"),
        ({SECRET: "with a space in the middle"}, "16 to 1024"),
        ({SECRET: "f\u00fcr-alle-verst\u00e4ndlich"}, "16 to 1024"),
        ({SECRET: GOOD, SECRET_FILE: "x"}, "both set"),
        ({SECRET_FILE: "/nowhere/at/all"}, "readable text file"),
    ],
)
def test_what_does_not_fit_is_refused_when_the_server_starts(environment: dict[str, str], named: str) -> None:
    with pytest.raises(ConfigError, match=named) as refused:
        take([], environment)
    assert "short" not in str(refused.value)
