"""One server at a time: pytest groups the tests by its parameter, so each configuration starts once."""

from __future__ import annotations

import random
from collections.abc import Iterator
from pathlib import Path

import pytest

from eval.tiny_model import TinyModel, write_tiny_model
from tests.support.e2e_client import Client
from tests.support.e2e_servers import START_S, Running, running

HERE = Path(__file__).parent


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    for item in items:
        if HERE in item.path.parents:
            item.add_marker(pytest.mark.e2e)
            if item.get_closest_marker("timeout") is None:
                # A test may be the one that starts the server.
                item.add_marker(pytest.mark.timeout(START_S + 300))


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item: pytest.Item, call: pytest.CallInfo[None]) -> Iterator[None]:
    report = yield
    server = getattr(item, "funcargs", {}).get("server")
    if report.failed and isinstance(server, Running):
        report.sections.append(("server log", "\n".join(server.log_text().splitlines()[-60:])))
    return report


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny-model")
    write_tiny_model(directory, TinyModel(), weights=True)
    return directory


@pytest.fixture(scope="session")
def server(
    request: pytest.FixtureRequest, model: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Running]:
    log = tmp_path_factory.mktemp("server") / f"{request.param.name}.log"
    with running(request.param, model, log) as started:
        yield started


@pytest.fixture
def client(server: Running) -> Iterator[Client]:
    """A client of a server with an empty cache; the server must be clean afterwards."""
    server.client.flush()
    yield server.client
    server.assert_clean()


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Seeded by the test's name (Random seeds itself from a string without hash())."""
    return random.Random(request.node.name)
