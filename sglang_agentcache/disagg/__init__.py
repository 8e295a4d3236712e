"""Prefill/decode disaggregation: what a decode worker learns of a request reaches the prefill worker.

The prefill worker holds the prefix and decides what to evict; the decode worker sees how the request ended and
which tool it called. `reporter` (decode side) notes each end, `channel` sends the notes in the background,
`serving.http` receives them, `rooms` (prefill side) finds the trajectory. A request is named by its
``bootstrap_room``: SGLang's router draws it at random and gives it to both sides.
"""
