"""The Compose files: valid to Docker Compose itself, and what they join together fits."""

from __future__ import annotations

import re
from pathlib import Path

import pytest
import yaml

from tests.support.deployments import COMPOSE_REQUIRED, compose, services

FILES = ("compose.yaml", "compose.1p3d.yaml")
DECODE = ("decode-1", "decode-2", "decode-3")


@pytest.mark.parametrize("file", FILES)
def test_compose_takes_the_file(repository: Path, file: str) -> None:
    found = services(repository, file)
    assert found["prometheus"]["profiles"] == ["metrics"]
    for service in found.values():
        assert all(port["host_ip"] == "127.0.0.1" for port in service.get("ports", ()))


@pytest.mark.parametrize("file", FILES)
def test_what_has_no_default_is_asked_for(repository: Path, file: str) -> None:
    done = compose(repository, file, {})
    assert done.returncode != 0 and "set MODEL_DIR to the directory" in done.stderr


@pytest.mark.parametrize("file", FILES)
def test_the_example_lists_every_variable_with_its_default(repository: Path, file: str) -> None:
    example = (repository / "docker/.env.example").read_text()
    listed = dict(re.findall(r"^#?([A-Z0-9_]+)=(.*)$", example, re.MULTILINE))
    text = (repository / "docker" / file).read_text()
    used = re.findall(r"\$\{([A-Z0-9_]+):[-?]((?:\{\}|[^}])*)\}", text)
    assert len(used) == text.count("${")
    for name, default in used:
        assert name in listed
        assert name in COMPOSE_REQUIRED or listed[name] == default


def test_one_gpu_each_one_secret_and_a_router_that_waits_for_all(repository: Path) -> None:
    found = services(repository, "compose.1p3d.yaml")
    workers = ("prefill", *DECODE)
    gpus = [
        device["device_ids"]
        for name in workers
        for device in found[name]["deploy"]["resources"]["reservations"]["devices"]
    ]
    assert gpus == [["0"], ["1"], ["2"], ["3"]]
    assert set(found["router"]["depends_on"]) == set(workers)
    for name in workers:
        assert [secret["target"] for secret in found[name]["secrets"]] == ["/run/secrets/agentcache"]
        assert "--agentcache-secret-file=/run/secrets/agentcache" in found[name]["command"]


def test_prometheus_finds_the_services_by_their_aliases(repository: Path) -> None:
    scrapes = yaml.safe_load((repository / "docker/prometheus.yaml").read_text())["scrape_configs"]
    ports = {sd["names"][0]: sd["port"] for job in scrapes for sd in job["dns_sd_configs"]}
    assert ports == {"agentcache-workers": 30000, "agentcache-router": 29000}
    for file in FILES:
        found = services(repository, file)
        del found["prometheus"]
        for name, service in found.items():
            (alias,) = service["networks"]["default"]["aliases"]
            assert alias == ("agentcache-router" if name == "router" else "agentcache-workers")
            flag = "--prometheus-port" if name == "router" else "--port"
            assert f"{flag}={ports[alias]}" in service["command"]
