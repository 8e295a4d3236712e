"""What the launcher adds to a run on a CPU."""

import os

import pytest

from sglang_agentcache.launch_server import prepare_cpu

BIND = "SGLANG_CPU_OMP_THREADS_BIND"


@pytest.fixture(autouse=True)
def two_cores(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", {})
    monkeypatch.setattr(os, "cpu_count", lambda: 2)


@pytest.mark.parametrize(
    ("flags", "cores"),
    [
        ("", None),
        ("--tp 2", "0|1"),
        ("--tensor-parallel-size=2", "0|1"),
        ("--pp-size 2", "0|1"),
        ("--dp-size 3", "0|1|0"),
        ("--tp-size 2 --dp-size 2", "0|1|0|1"),
        ("--tp-size 2 --dp-size 2 --enable-dp-attention", "0|1"),
        ("--tp-size many", None),
    ],
)
def test_each_rank_has_a_core(flags: str, cores: str | None) -> None:
    prepare_cpu(["--device", "cpu", *flags.split()])
    assert os.environ.get(BIND) == cores


def test_without_a_cpu_run_nothing_is_touched() -> None:
    assert prepare_cpu(["--tp", "2"]) == ["--tp", "2"]
    assert not {BIND, "SGLANG_USE_CPU_ENGINE"} & set(os.environ)


def test_what_is_set_stays() -> None:
    os.environ[BIND] = "1|0"
    prepare_cpu(["--device=cpu", "--tp", "2"])
    assert os.environ[BIND] == "1|0"
