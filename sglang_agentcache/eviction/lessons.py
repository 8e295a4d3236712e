"""What waits that are over teach a predictor, gathered so that a batch is worked off together.

To prepare a wait costs far more than to note it, and many together cost a fraction of one by one. So what a
request's own step does is to note; the work is done when an order is needed, or enough has gathered.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import NamedTuple

from sglang_agentcache.predictor.duration import DurationPredictor, PreparedWait
from sglang_agentcache.predictor.history import SessionHistory
from sglang_agentcache.predictor.tool_calls import Wait

BATCH = 64
"""So many notes are worked off at once even if no order is needed: the work of one step stays bounded."""


class Lesson(NamedTuple):
    """A wait that is over; `prepared` is None if no order ever needed it."""

    waits_for: Wait
    prepared: PreparedWait | None
    history: SessionHistory
    idle_s: float
    censored: bool


class Lessons:
    """Lessons in the order in which the waits ended; at most `BATCH` wait to be learned.

    Args:
        failed: called while an exception of the predictor is handled; nothing raises.
    """

    def __init__(self, failed: Callable[[], None]) -> None:
        self._failed = failed
        self._noted: list[Lesson] = []

    def __len__(self) -> int:
        return len(self._noted)

    def note(self, lesson: Lesson, predictor: DurationPredictor) -> None:
        self._noted.append(lesson)
        if len(self._noted) >= BATCH:
            self.learn(predictor)

    def learn(self, predictor: DurationPredictor) -> None:
        """Teach all that is noted; from here on every history is complete."""
        noted, self._noted = self._noted, []
        for part in _without_repetition(noted):
            new = [lesson for lesson in part if lesson.prepared is None]
            found = iter(
                prepare_each(
                    predictor,
                    [lesson.waits_for for lesson in new],
                    [lesson.history for lesson in new],
                    self._failed,
                )
            )
            for lesson in part:
                wait = next(found) if lesson.prepared is None else lesson.prepared
                if wait is None:
                    continue
                try:
                    predictor.observe(wait, lesson.idle_s, history=lesson.history, censored=lesson.censored)
                except Exception:
                    self._failed()


def prepare_each(
    predictor: DurationPredictor,
    waits: Sequence[Wait],
    histories: Sequence[SessionHistory],
    failed: Callable[[], None],
) -> Sequence[PreparedWait | None]:
    """Prepare many waits together; None where it fails, which spoils no other one."""
    if not waits:
        return []
    try:
        return predictor.prepare_many(waits, histories)
    except Exception:
        return [
            _prepare(predictor, wait, history, failed) for wait, history in zip(waits, histories, strict=True)
        ]


def _prepare(
    predictor: DurationPredictor, wait: Wait, history: SessionHistory, failed: Callable[[], None]
) -> PreparedWait | None:
    try:
        return predictor.prepare(wait, history)
    except Exception:
        failed()
        return None


def _without_repetition(lessons: Sequence[Lesson]) -> Iterator[list[Lesson]]:
    """Parts in which no history occurs twice: a wait is looked at with the one before it learned."""
    part: list[Lesson] = []
    seen: set[int] = set()  # membership only: no order depends on the id
    for lesson in lessons:
        if id(lesson.history) in seen:
            yield part
            part, seen = [], set()
        part.append(lesson)
        seen.add(id(lesson.history))
    if part:
        yield part
