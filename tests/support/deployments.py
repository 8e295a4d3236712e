"""The deployment files' command lines, and what the programs they are for make of them.

`python -m tests.support.deployments` reads a JSON list of [program, arguments] and writes what the program's own
parser made of each: {"values": {...}} or {"error": str}, null where the program is not installed. Programs: "server"
(our launcher's flags, then SGLang's with our choices added) and "router" (SGLang's). A process of its own, since
loading the plugin changes SGLang, and one for all command lines, since SGLang takes long to import.
"""

from __future__ import annotations

import argparse
import contextlib
import io
import json
import os
import re
import subprocess
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import yaml

COMPOSE_REQUIRED = {"MODEL_DIR": "/some/models", "SGLANG_AGENTCACHE_SECRET": "a-secret-of-24-characters"}
MOUNTED_SECRET = re.compile(r"--agentcache-secret-file=/run/secrets/agentcache(/secret)?")


def compose(
    repository: Path, file: str, variables: Mapping[str, str] = COMPOSE_REQUIRED
) -> subprocess.CompletedProcess[str]:
    """`docker compose config` of one file, with no variables but these and no `.env` file."""
    tool = Path(sys.executable).with_name("docker-compose")
    command = [tool, "--env-file", os.devnull, "--profile", "metrics", "-f", repository / "docker" / file]
    return subprocess.run(
        [*command, "config", "--format", "json"],
        env={"PATH": os.environ["PATH"], **variables},
        capture_output=True,
        text=True,
    )


def services(repository: Path, file: str, **variables: str) -> dict[str, Any]:
    done = compose(repository, file, {**COMPOSE_REQUIRED, **variables})
    assert (done.returncode, done.stderr) == (0, "")
    return json.loads(done.stdout)["services"]


def documents(repository: Path, name: str) -> list[dict[str, Any]]:
    """The Kubernetes objects of one manifest."""
    return list(yaml.safe_load_all((repository / "docker/k8s" / name).read_text()))


def pods(repository: Path) -> dict[str, dict[str, Any]]:
    """Pod templates by component."""
    templates = {"router": documents(repository, "router.yaml")[0]["spec"]["template"]}
    for role in ("prefill", "decode"):
        (worker,) = documents(repository, f"{role}.yaml")
        templates[role] = worker["spec"]["leaderWorkerTemplate"]["workerTemplate"]
    return templates


def pod_command(repository: Path, component: str) -> list[str]:
    """A container's arguments, with the config map's values filled in as Kubernetes does."""
    (config,) = documents(repository, "config.yaml")
    (container,) = pods(repository)[component]["spec"]["containers"]
    assert container["envFrom"] == [{"configMapRef": {"name": config["metadata"]["name"]}}]
    return [re.sub(r"\$\((\w+)\)", lambda name: config["data"][name[1]], arg) for arg in container["args"]]


def parse(commands: Sequence[tuple[str, Sequence[str]]], repository: Path, secret: Path) -> list[Any]:
    """What became of each (program, arguments): attributes by name, or None.

    Args:
        secret: a file that stands for the one that containers have mounted.
    """
    given = [
        [program, [MOUNTED_SECRET.sub(f"--agentcache-secret-file={secret}", arg) for arg in arguments]]
        for program, arguments in commands
    ]
    done = subprocess.run(
        [sys.executable, "-m", "tests.support.deployments"],
        input=json.dumps(given),
        capture_output=True,
        text=True,
        cwd=repository,
    )
    assert done.returncode == 0, done.stderr
    answers = json.loads(done.stdout.splitlines()[-1])
    for command, answer in zip(commands, answers, strict=True):
        assert answer is None or "error" not in answer, (command, answer)
    return [answer and answer["values"] for answer in answers]


def _server(arguments: list[str]) -> dict[str, Any]:
    from sglang.srt.plugins import load_plugins
    from sglang.srt.server_args import ServerArgs

    from sglang_agentcache.flags import take

    load_plugins()
    parser = argparse.ArgumentParser()
    ServerArgs.add_cli_args(parser)
    environment: dict[str, str] = {}
    return {**vars(parser.parse_args(take(arguments, environment))), **environment}


def _router(arguments: list[str]) -> dict[str, Any]:
    from sglang_router.launch_router import parse_router_args

    return vars(parse_router_args(arguments))


def main() -> None:
    answers: list[dict[str, Any] | None] = []
    for program, arguments in json.load(sys.stdin):
        complaint = io.StringIO()
        try:
            with contextlib.redirect_stderr(complaint):
                values = (_router if program == "router" else _server)(arguments)
        except ModuleNotFoundError as error:
            if error.name != "sglang_router":
                raise
            answers.append(None)
        except (SystemExit, ValueError) as error:
            answers.append({"error": complaint.getvalue() or str(error)})
        else:
            answers.append({"values": values})
    print(json.dumps(answers, default=str))


if __name__ == "__main__":
    main()
