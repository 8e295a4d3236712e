"""Prefill and decode servers behind SGLang's router; skipped where the transfer library cannot be loaded."""

from __future__ import annotations

import random
from pathlib import Path

import pytest

from eval import pd
from eval.tiny_model import TinyModel, write_tiny_model

HERE = Path(__file__).parent
TIMEOUT_S = 1200.0


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    ours = [item for item in items if HERE in item.path.parents]
    reason = pd.missing("nixl") if ours else None
    for item in ours:
        item.add_marker(pytest.mark.pd)
        # A test may be the one that starts the servers.
        item.add_marker(pytest.mark.timeout(TIMEOUT_S))
        if reason is not None:
            item.add_marker(pytest.mark.skip(reason=reason))


@pytest.fixture(scope="session")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    directory = tmp_path_factory.mktemp("tiny-model")
    write_tiny_model(directory, TinyModel(), weights=True)
    return directory


@pytest.fixture
def rng(request: pytest.FixtureRequest) -> random.Random:
    """Seeded by the test's name (Random seeds itself from a string without hash())."""
    return random.Random(request.node.name)
