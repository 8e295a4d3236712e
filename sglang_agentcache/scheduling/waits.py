"""What a scheduler knows of the waits of its trajectories: what they wait for, how long it took, who foresees it."""

from __future__ import annotations

import logging
from array import array
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from sglang.srt.managers.schedule_batch import FINISH_ABORT, FINISH_LENGTH, FINISH_MATCHED_TOKEN

from sglang_agentcache.eviction.ranked import RankedPolicy
from sglang_agentcache.predictor.store import DEFAULT_DIR, ArtefactError
from sglang_agentcache.serving.reload import Artefact, digest
from sglang_agentcache.serving.tools import carried_tools

from .call_log import CallLog
from .durations import ToolDurations
from .tool_calls import MAX_OUTPUT_TOKENS, PROMPT_TAIL_TOKENS, ToolCallReader

if TYPE_CHECKING:
    from sglang.srt.managers.schedule_batch import Req

    from sglang_agentcache.cache.radix_cache import AgentRadixCache
    from sglang_agentcache.predictor.tool_calls import ToolCall
    from sglang_agentcache.trajectory.table import Trajectory

logger = logging.getLogger(__name__)


class Output(NamedTuple):
    """What a finished request generated, as `ToolCallReader.read` takes it: copies, so that the request may go."""

    ids: array[int]
    tool_names: tuple[str, ...]
    cut_off: bool
    prompt_tail: array[int]


def finished_output(req: Req, parser: str) -> Output | None:
    """The output of a finished request, for this `--tool-call-parser`; None if it was aborted."""
    reason = req.finished_reason
    if reason is None or isinstance(reason, FINISH_ABORT):
        return None
    ids = req.output_ids_through_stop
    # Some formats end a call with a token that also ends the turn; detectors that do not need it skip it.
    if isinstance(reason, FINISH_MATCHED_TOKEN) and parser not in ("gpt-oss", "response_template"):
        ids = ids[:-1]
    return Output(
        # One more than is decoded: the reader must see that there was more.
        array("q", ids[-MAX_OUTPUT_TOKENS - 1 :]),
        carried_tools(req.sampling_params.custom_params),
        isinstance(reason, FINISH_LENGTH),
        array("q", req.origin_input_ids[-PROMPT_TAIL_TOKENS:]),
    )


class Waits:
    """Connects the cache with tool calls, their durations, and the predictor.

    Args:
        cache: ours; from here on it asks this object what a finished request waits for, and tells it of every
            return. With neither a policy that predicts nor a call log, nothing is asked and nothing told.
        reader: reads calls off outputs; None leaves what clients declare.
        log: where returns are written; None for nowhere.
    """

    def __init__(self, cache: AgentRadixCache, reader: ToolCallReader | None, log: CallLog | None) -> None:
        self.cache = cache
        self.reader = reader
        self.log = log
        self.durations = ToolDurations()
        policy = cache.policy
        self.policy = policy if isinstance(policy, RankedPolicy) else None
        options = cache.agent_config.policy_options
        trained = Path(options.get("predictor") or DEFAULT_DIR)
        shipped = options.get("estimator") in (None, "stacked")
        self.artefact = (
            digest(trained) if self.policy is not None and (shipped or "predictor" in options) else None
        )
        if self.policy is not None or log is not None:
            cache.table.on_return.append(self.returned)
            cache.table.on_abandoned = self.abandoned
            if reader is not None:
                cache.tool_calls_of = self.tool_calls_of

    def tool_calls_of(self, req: Req) -> tuple[ToolCall, ...] | None:
        """The calls in a finished request's output; () for none, None if that cannot be told."""
        output = None if self.reader is None else finished_output(req, self.reader.parser)
        return None if self.reader is None or output is None else self.reader.read(*output)

    def returned(self, trajectory: Trajectory, idle_s: float) -> None:
        """A trajectory is back; its hints still tell what it waited for."""
        calls = _waited_for(trajectory)
        if calls is None:
            return
        self.durations.add(calls, idle_s)
        if self.log is not None:
            self.log.add(trajectory.key, calls, idle_s)

    def abandoned(self, trajectory: Trajectory, idle_s: float) -> None:
        """A trajectory has been completed while it waited: it would have waited longer."""
        calls = _waited_for(trajectory)
        if calls is not None and self.log is not None:
            self.log.add(trajectory.key, calls, idle_s, censored=True)

    def reload(self, body: object) -> str | None:
        """Put another predictor in force, for every order from the next one on.

        Returns:
            the artefact's id.

        Raises:
            ArtefactError: it cannot be, and nothing has changed.
        """
        if self.policy is None:
            raise ArtefactError(f"policy {self.cache.agent_config.policy!r} uses no predictor")
        self.policy.predictor, self.artefact = Artefact.unpack(body).load()
        logger.info("agentcache: predictor %s is in force", self.artefact)
        return self.artefact

    def state(self) -> dict[str, Any]:
        """For `GET /server_info`."""
        return {
            "tool_call_parser": self.reader.parser if self.reader is not None else None,
            "unreadable_outputs": self.reader.failures if self.reader is not None else 0,
            "predictor": None
            if self.policy is None
            else {"estimator": self.policy.predictor.estimator, "artefact": self.artefact},
            "tools": self.durations.most_frequent(),
        }


def _waited_for(trajectory: Trajectory) -> tuple[ToolCall, ...] | None:
    """The calls of its last turn; () for none, None if that is not known."""
    return trajectory.hints.tool_calls if trajectory.hints is not None else None
