"""Keep the right KV cache for LLM agents, beside a stock SGLang server.

Importing this package is cheap and has no side effects: SGLang, torch and scikit-learn are only loaded by the
modules that need them.
"""

__version__ = "0.1.0"
