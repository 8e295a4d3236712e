"""Runs our launcher many times from one interpreter: `python -m tests.support.launches < cases.jsonl`.

SGLang takes 10 to 30 s to import on a small machine, whatever is refused afterwards. So this process
imports it once and forks for each case; the child is the launcher itself, up to where it refuses.

A case is one JSON line: {"arguments": [...], "environment": {...}, "sglang_version": str | null,
"entry": "launcher" | "plugin"}. For each it writes one JSON line: {"code": int | null, "stderr": str}; the
code is null if the process had to be stopped, because it was about to serve.
"""

from __future__ import annotations

import importlib.metadata
import json
import os
import signal
import sys
import tempfile
import traceback
from typing import Any

GIVE_UP_S = 90


def child(case: dict[str, Any]) -> None:
    os.environ.update(case.get("environment", {}))
    arguments = case["arguments"]
    if (version := case.get("sglang_version")) is not None:
        installed = importlib.metadata.version
        importlib.metadata.version = lambda name: version if name == "sglang" else installed(name)
    if case.get("entry") == "plugin":
        sys.argv = ["sglang", "serve", *arguments]
        from sglang.srt.plugins import load_plugins

        load_plugins()
    else:
        from sglang_agentcache.launch_server import main

        main(arguments)


def launch(case: dict[str, Any]) -> dict[str, Any]:
    with tempfile.TemporaryFile() as output:
        pid = os.fork()
        if pid == 0:
            os.setsid()
            for stream in (1, 2):
                os.dup2(output.fileno(), stream)
            signal.alarm(GIVE_UP_S)
            code = 0
            try:
                child(case)
            except SystemExit as stopped:
                # As the interpreter treats it.
                if stopped.code is not None and not isinstance(stopped.code, int):
                    print(stopped.code, file=sys.stderr, flush=True)
                code = stopped.code if isinstance(stopped.code, int) else int(stopped.code is not None)
            except BaseException:
                traceback.print_exc()
                code = 1
            finally:
                sys.stderr.flush()
                os._exit(code)
        _, status = os.waitpid(pid, 0)
        output.seek(0)
        code = os.WEXITSTATUS(status) if os.WIFEXITED(status) else None
        return {"code": code, "stderr": output.read().decode(errors="replace")}


def main() -> None:
    os.environ.setdefault("SGLANG_USE_CPU_ENGINE", "1")
    import sglang.launch_server
    import sglang.srt.entrypoints.http_server
    import sglang.srt.server_args  # noqa: F401

    for line in sys.stdin:
        print(json.dumps(launch(json.loads(line))), flush=True)


if __name__ == "__main__":
    main()
