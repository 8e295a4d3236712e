import pytest

from sglang_agentcache.predictor.duration import DurationPredictor
from sglang_agentcache.predictor.records import WaitRecords
from sglang_agentcache.predictor.synthetic import Generator


def fitted(records: WaitRecords, estimator: str = "stacked") -> DurationPredictor:
    predictor = DurationPredictor(estimator, n_trees=30, n_clusters=10)
    return predictor.fit(
        records.waits, records.durations, sessions=records.sessions, censored=records.censored
    )


@pytest.fixture(scope="session")
def records() -> WaitRecords:
    return Generator(seed=7).sessions(3000)


@pytest.fixture(scope="session")
def stacked(records) -> DurationPredictor:
    """Read-only: a test that lets it learn makes its own."""
    return fitted(records)


@pytest.fixture(scope="session")
def cachewise(records) -> DurationPredictor:
    return fitted(records, "cachewise")


@pytest.fixture(params=["stacked", "cachewise"])
def predictor(request) -> DurationPredictor:
    return request.getfixturevalue(request.param)
