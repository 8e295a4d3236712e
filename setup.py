"""What ``pyproject.toml`` cannot express: packages that are found automatically *and* one that is mapped.

``patches/`` becomes ``sglang_agentcache.patches``; ``package-dir`` in ``pyproject.toml`` says where it is.
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
