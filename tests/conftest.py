"""What every test may rely on. Helpers of one kind of test live in that folder's own ``conftest.py``."""

from pathlib import Path

import pytest


@pytest.fixture(scope="session")
def repository() -> Path:
    """The root of the checkout under test."""
    return Path(__file__).resolve().parent.parent
