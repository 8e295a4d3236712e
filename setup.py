"""Only what ``pyproject.toml`` cannot express: packages that are found automatically *and* one that is mapped.

The top-level ``patches/`` directory becomes ``sglang_agentcache.patches``; where it lives is said in ``package-dir``.
"""

from setuptools import find_packages, setup

PATCHES = "sglang_agentcache.patches"

setup(
    packages=[
        *find_packages(include=["sglang_agentcache", "sglang_agentcache.*"]),
        PATCHES,
        *(f"{PATCHES}.{name}" for name in find_packages("patches")),
    ],
)
