"""Stops setup, with one sentence, where pip chose a torch that is not a CPU build."""

import importlib.util
import runpy
import sys
from pathlib import Path


def accelerator_of_torch() -> str | None:
    """The toolkit the installed torch was built for (``"CUDA 13.0"``, ``"ROCm 7.1"``), None for a CPU build.

    Reads torch's version file: a CUDA build without its libraries (``--no-deps``) does not import.
    """
    spec = importlib.util.find_spec("torch")
    if spec is None or spec.origin is None:
        raise SystemExit("setup: torch is not installed.")
    version = runpy.run_path(str(Path(spec.origin).with_name("version.py")))
    for key, label in (("cuda", "CUDA"), ("hip", "ROCm"), ("xpu", "XPU")):
        if version.get(key):
            return f"{label} {version[key]}"
    return None


if __name__ == "__main__":
    found = accelerator_of_torch()
    if found is not None:
        sys.exit(
            f"setup: pip installed a torch built for {found}, and the CPU set needs the CPU build: "
            "set TORCH_ARGS to pip options that find it, as in make setup "
            "TORCH_ARGS='--index-url <the index of PyTorch's CPU wheels>'."
        )
