"""What a replay writes down: one line of JSON per request."""

from __future__ import annotations

import os
from collections.abc import Iterator

import msgspec


class RequestRecord(msgspec.Struct, kw_only=True):
    """One request of a replay, measured at the client. Times in seconds, sizes in tokens.

    Token counts of a request that failed are what was meant to be sent; ``ttft_s`` is then None.
    """

    trajectory_id: str
    source: str
    turn: int
    kind: str
    tool_name: str | None
    sent_s: float
    """From the start of the replay."""
    gap_s: float
    """Tool or user time waited before this request."""
    prompt_tokens: int
    history_tokens: int
    """How many prompt tokens belong to the trajectory's previous context; 0 on its first turn."""
    cached_tokens: int = 0
    """Cache hit that the server reports."""
    output_tokens: int = 0
    ttft_s: float | None = None
    latency_s: float | None = None
    final: bool = False
    active_tokens: int = 0
    """KV of all requests in flight when this one was sent, itself included."""
    live_tokens: int = 0
    """KV of all live trajectories at that moment, active and idle, each shared prefix counted once."""
    error: str | None = None

    @property
    def uncached_tokens(self) -> int:
        """Prompt tokens that the server had to prefill."""
        return self.prompt_tokens - self.cached_tokens

    @property
    def lost_most_of_history(self) -> bool:
        """Whether more than half of the history was gone when the trajectory came back."""
        return self.history_tokens - self.cached_tokens > self.history_tokens / 2


_encoder = msgspec.json.Encoder()


def encode(record: RequestRecord) -> bytes:
    """One line, with the derived ``uncached_tokens`` spelled out for readers in other languages."""
    return (
        _encoder.encode({**msgspec.structs.asdict(record), "uncached_tokens": record.uncached_tokens}) + b"\n"
    )


def read_records(path: str | os.PathLike[str]) -> Iterator[RequestRecord]:
    """Read a file that a replay wrote. Raises msgspec.ValidationError if it is something else."""
    decoder = msgspec.json.Decoder(RequestRecord)
    with open(path, "rb") as lines:
        for line in lines:
            yield decoder.decode(line)
