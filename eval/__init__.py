"""Evaluation tools (``python -m eval``): traces, replay on a live server, simulation over the real cache."""
