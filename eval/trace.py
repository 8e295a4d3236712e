"""The trace format: one trajectory a line, as JSON, text-free (token counts, tool names, arguments, times).

Every importer writes it, the workload generator writes it, the simulator and the replay client read it.
A file may be gzipped (``.gz``). Unknown keys are ignored, so a newer writer does not break an older reader.
"""

from __future__ import annotations

import gzip
import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from typing import IO, Annotated, Any

import msgspec

TURN_KINDS = ("tool", "user")

Count = Annotated[int, msgspec.Meta(ge=0)]
Positive = Annotated[int, msgspec.Meta(ge=1)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]


class Turn(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One LLM request of a trajectory, and what happened between it and the request before.

    ``prompt_tokens - new_input_tokens`` tokens are kept from the previous context (prompt + output of the
    turn before). ``gap_s`` is the time from the end of the previous output to the moment this request could
    be sent; None means that the recording does not tell.
    """

    kind: str
    """What triggered the request: ``tool`` (results came back) or ``user`` (a prompt)."""
    prompt_tokens: Positive
    new_input_tokens: Positive
    output_tokens: Count
    gap_s: Seconds | None = None
    tool_name: str | None = None
    """The call that returned last before this request."""
    tool_args: str | None = None
    """Its arguments, as JSON text (possibly cut or scrubbed)."""
    tools: list[tuple[str, float | None]] | None = None
    """Only for parallel calls: every call's name and seconds."""
    tool_s: Seconds | None = None
    """Duration that the agent itself recorded for the call."""
    cached_tokens: Count | None = None
    """Cache hit that the original service reported."""
    llm_s: Seconds | None = None
    t_s: Seconds | None = None
    """Start of the request, from the start of the trajectory."""
    interval_s: Seconds | None = None
    """Start to start of consecutive requests, where nothing finer was recorded."""
    perm: str | None = None
    """The agent's permission mode."""
    human: bool = False
    """The "tool" waits for a person."""
    reset: bool = False
    """The context was compacted, rewound or replaced: only the shared prefix is kept."""
    prompt_est: bool = False
    common_prefix_tokens: Count | None = None

    @property
    def kept_tokens(self) -> int:
        """Length of the prefix shared with the previous context."""
        return self.prompt_tokens - self.new_input_tokens


class Trajectory(msgspec.Struct, frozen=True, kw_only=True, omit_defaults=True):
    """One agent's requests in order. Sub-agents are separate, in the same ``session_group``."""

    trajectory_id: str
    session_group: str
    source: str
    """Where it was recorded (owner/name), or the generator's profile."""
    turns: list[Turn]
    shared_prefix_id: str | None = None
    """Trajectories with the same id start with the same ``shared_prefix_tokens`` tokens."""
    shared_prefix_tokens: Count = 0
    shared_prefix_est: str | None = None
    commit: str | None = None
    licence: str | None = None
    agent: str | None = None
    agent_version: str | None = None
    model: str | None = None
    subagent: bool = False
    parent: str | None = None
    start_s: float | None = None
    permission_modes: list[str] | None = None
    truncated: bool = False
    simulated_user: bool = False
    n_turns: int | None = None

    @property
    def peak_tokens(self) -> int:
        """Longest context it ever holds: prompt and output of one turn."""
        return max(turn.prompt_tokens + turn.output_tokens for turn in self.turns)


class TraceError(ValueError):
    """A line that does not follow the format; the message names file, line, field and what is allowed."""

    def __init__(self, path: str, line: int, problem: str) -> None:
        super().__init__(f"{path}:{line}: {problem}")
        self.path, self.line, self.problem = path, line, problem


_decoder = msgspec.json.Decoder(Trajectory)
_encoder = msgspec.json.Encoder()


def check(trajectory: Trajectory) -> None:
    """Check what the types cannot say. Raises ValueError naming the field and what is allowed."""
    turns = trajectory.turns
    if not turns:
        raise ValueError("turns: a trajectory has at least one turn")
    if trajectory.n_turns is not None and trajectory.n_turns != len(turns):
        raise ValueError(f"n_turns: is {trajectory.n_turns}, but there are {len(turns)} turns")
    if trajectory.shared_prefix_tokens and trajectory.shared_prefix_id is None:
        raise ValueError("shared_prefix_id: required where shared_prefix_tokens is above 0")
    context = 0
    for index, turn in enumerate(turns):
        where = f"turns[{index}]"
        if turn.kind not in TURN_KINDS:
            raise ValueError(f"{where}.kind: allowed are {', '.join(TURN_KINDS)}; got {turn.kind!r}")
        if turn.kept_tokens < 0:
            raise ValueError(
                f"{where}.new_input_tokens: at most prompt_tokens ({turn.prompt_tokens}); "
                f"got {turn.new_input_tokens}"
            )
        if index and turn.kept_tokens > context:
            raise ValueError(
                f"{where}.new_input_tokens: keeps {turn.kept_tokens} tokens of a previous context "
                f"of {context}; allowed are at least {turn.prompt_tokens - context}"
            )
        context = turn.prompt_tokens + turn.output_tokens


def parse_line(line: bytes | str, path: str, number: int) -> Trajectory:
    """One line of a trace. Raises TraceError."""
    try:
        trajectory = _decoder.decode(line)
        check(trajectory)
    except msgspec.ValidationError as error:
        problem, _, place = str(error).partition(" - at `")
        field = place.rstrip("`").removeprefix("$.") or "the line"
        raise TraceError(path, number, f"{field}: {problem}") from None
    except (msgspec.DecodeError, ValueError) as error:
        raise TraceError(path, number, str(error)) from None
    return trajectory


@contextmanager
def open_bytes(path: str | os.PathLike[str], mode: str) -> Iterator[IO[bytes]]:
    """Open a plain or gzipped (``.gz``) file for ``"r"`` or ``"w"``; same input, same bytes written."""
    name = os.fspath(path)
    with open(name, f"{mode}b") as raw:
        if not name.endswith(".gz"):
            yield raw
            return
        # No file name and no time in the gzip header: a trace written twice is the same file.
        with gzip.GzipFile(filename="", fileobj=raw, mode=f"{mode}b", mtime=0) as packed:
            yield packed  # type: ignore[misc]


def read_traces(*paths: str | os.PathLike[str]) -> Iterator[Trajectory]:
    """Stream the trajectories of several files, in order; one line in memory at a time. Raises TraceError."""
    for path in paths:
        name = os.fspath(path)
        number = 0
        with open_bytes(path, "r") as lines:
            try:
                for number, line in enumerate(lines, 1):
                    if line.strip():
                        yield parse_line(line, name, number)
            except (EOFError, gzip.BadGzipFile) as error:
                raise TraceError(name, number + 1, f"the gzip data is damaged: {error}") from None


def write_traces(path: str | os.PathLike[str], trajectories: Iterable[Trajectory]) -> int:
    """Write trajectories, each checked first, and return how many. Raises ValueError for an invalid one."""
    count = 0
    with open_bytes(path, "w") as out:
        for trajectory in trajectories:
            check(trajectory)
            out.write(_encoder.encode(trajectory) + b"\n")
            count += 1
    return count


def replace(trajectory: Trajectory, **changes: Any) -> Trajectory:
    """A copy with some fields changed; ``n_turns`` follows ``turns``."""
    if "turns" in changes:
        changes.setdefault("n_turns", len(changes["turns"]))
    return msgspec.structs.replace(trajectory, **changes)


def replace_turn(turn: Turn, **changes: Any) -> Turn:
    """A copy of a turn with some fields changed."""
    return msgspec.structs.replace(turn, **changes)
