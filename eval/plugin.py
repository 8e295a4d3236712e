"""SGLang plugins that are not installed: for measuring, and for tests."""

from __future__ import annotations

import os
from pathlib import Path


def plugin_in(folder: Path, name: str, target: str) -> dict[str, str]:
    """Make an entry point for `target`, "module:function" of this checkout, in a folder.

    Returns:
        the environment of a server that loads it (`sglang.srt.plugins.load_plugins`, 0.5.23).
    """
    info = folder / f"{name}-0.dist-info"
    info.mkdir(parents=True, exist_ok=True)
    (info / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name}\nVersion: 0\n")
    (info / "entry_points.txt").write_text(f"[sglang.srt.plugins]\n{name} = {target}\n")
    checkout = Path(__file__).resolve().parent.parent
    paths = [str(folder), str(checkout), *filter(None, [os.environ.get("PYTHONPATH")])]
    return {"PYTHONPATH": os.pathsep.join(paths)}
