"""Evaluation tools: traces, replay against a live server, simulation over the real cache, reports (``python -m eval``)."""
