"""A request as the door of `scheduling.admission` reads it."""

from dataclasses import dataclass


@dataclass
class Sent:
    """Stands for SGLang's `Req`."""

    rid: str
    origin_input_ids: list[int]
    prefix_len: int = 0
    extend_end: int = 0
    arrival_processed_tokens: int = 0
