"""The images, as far as they can be checked without a Docker engine."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
import sysconfig
import tomllib
from collections.abc import Iterator
from pathlib import Path

import pytest

DOCKERFILES = ("Dockerfile", "Dockerfile.cpu")


class Stage:
    """One `FROM` of a Dockerfile and its instructions, continuation lines joined."""

    def __init__(self, base: str) -> None:
        self.base = base
        self.instructions: list[tuple[str, str]] = []

    def all(self, name: str) -> list[str]:
        return [text for instruction, text in self.instructions if instruction == name]


def stages(path: Path) -> dict[str, Stage]:
    text = "\n".join(line for line in path.read_text().splitlines() if not line.lstrip().startswith("#"))
    found: dict[str, Stage] = {}
    for line in text.replace("\\\n", " ").splitlines():
        name, _, rest = line.strip().partition(" ")
        if name == "FROM":
            base, _, stage = rest.partition(" AS ")
            current = found[stage or "server"] = Stage(base)
        elif name and found:
            current.instructions.append((name, " ".join(rest.split())))
    return found


@pytest.mark.parametrize("name", DOCKERFILES)
def test_hadolint_has_nothing_to_say(repository: Path, name: str) -> None:
    command = [Path(sys.executable).with_name("hadolint"), "--failure-threshold", "style", "--no-color"]
    done = subprocess.run([*command, repository / "docker" / name], capture_output=True, text=True)
    assert (done.returncode, done.stdout) == (0, "")


@pytest.mark.parametrize("name", DOCKERFILES)
def test_servers_run_our_launcher_without_root_and_say_how_they_are(repository: Path, name: str) -> None:
    server = stages(repository / "docker" / name)["server"]
    assert json.loads(server.all("ENTRYPOINT")[-1]) == ["python3", "-m", "sglang_agentcache.launch_server"]
    assert int(server.all("USER")[-1]) > 0
    # Nothing is installed, and no file is written, by another user afterwards.
    after_user = [name for name, _ in server.instructions[server.instructions.index(("USER", "10001")) :]]
    assert "RUN" not in after_user and "COPY" not in after_user
    (health,) = server.all("HEALTHCHECK")
    compile(json.loads(health.partition(" CMD ")[2])[2], "healthcheck", "exec")
    assert "30000/health" in health and "30000" in server.all("EXPOSE")[0]


def test_the_image_is_that_of_the_supported_version(repository: Path) -> None:
    from sglang_agentcache.support import SUPPORTED_SGLANG

    text = (repository / "docker/Dockerfile").read_text()
    (default,) = re.findall(r"^ARG SGLANG_IMAGE=lmsysorg/sglang:v(\S+)$", text, re.MULTILINE)
    assert default in SUPPORTED_SGLANG


def test_versions_are_those_of_the_lock(repository: Path) -> None:
    lock = "".join(
        (repository / "docker/cpu" / name).read_text() for name in ("requirements.txt", "requirements-pd.txt")
    )
    text = (repository / "docker/Dockerfile").read_text()
    pinned = re.findall(r"([a-z-]+==[0-9][0-9a-z.]*)", text)
    assert len(pinned) == 4
    for requirement in pinned:
        assert f"\n{requirement}\n" in lock, requirement


def test_the_build_context_has_what_the_images_copy_and_no_more(repository: Path) -> None:
    allowed = {
        line[1:] for line in (repository / ".dockerignore").read_text().splitlines() if line[:1] == "!"
    }
    assert (repository / ".dockerignore").read_text().splitlines()[1] == "*"
    assert all((repository / path).exists() for path in allowed)
    for text in stages(repository / "docker/Dockerfile")["wheel"].all("COPY"):
        assert set(text.split()[:-1]) <= allowed
    installer = (repository / "docker/cpu/install.sh").read_text()
    assert "docker/cpu" in allowed and '-e "$root"' in installer
    readme = tomllib.loads((repository / "pyproject.toml").read_text())["project"]["readme"]
    assert readme in allowed


def pip_steps(stage: Stage) -> Iterator[str]:
    """The commands of a stage that install or check Python packages, each as one line of shell."""
    for text in stage.all("RUN"):
        for command in re.sub(r"--mount=\S+ ", "", text).split(" && "):
            if command.startswith("python3 "):
                yield command


@pytest.fixture
def clean(tmp_path: Path) -> Path:
    """A new virtual environment that sees this one's packages, as an image's has SGLang, but not ours."""
    shared = tmp_path / "packages"
    shared.mkdir()
    for entry in Path(sysconfig.get_path("purelib")).iterdir():
        if not re.match(r"sglang_agentcache|__editable__|_*pip\b|eval\b|patches\b", entry.name):
            (shared / entry.name).symlink_to(entry)
    subprocess.run([sys.executable, "-m", "venv", tmp_path / "venv"], check=True)
    # Images of Python 3.12 come without it.
    pip = (tmp_path / "venv/bin/python", "-m", "pip", "uninstall", "-qq", "--yes", "setuptools")
    subprocess.run(pip, check=True)
    (site,) = (tmp_path / "venv/lib").glob("python*/site-packages")
    (site / "image.pth").write_text(f"{shared}\n")
    return tmp_path / "venv/bin"


@pytest.mark.slow
def test_the_install_steps_run_in_a_clean_environment(repository: Path, tmp_path: Path, clean: Path) -> None:
    found = stages(repository / "docker/Dockerfile")
    source = tmp_path / "src"
    source.mkdir()
    for text in found["wheel"].all("COPY"):
        *names, target = text.split()
        for name in names:
            if (repository / name).is_dir():
                ignore = shutil.ignore_patterns("__pycache__")
                shutil.copytree(repository / name, source / target, ignore=ignore)
            else:
                shutil.copy(repository / name, source / target)
    environment = {**os.environ, "PATH": f"{clean}:{os.environ['PATH']}"}
    steps = [*pip_steps(found["wheel"]), *pip_steps(found["server"])]
    assert [step.split()[1:4] for step in steps[1:3]] == [["-m", "pip", "wheel"], ["-m", "pip", "install"]]
    for step in steps:
        command = step.replace("/wheels", str(tmp_path / "wheels"))
        done = subprocess.run(
            ["sh", "-ec", command], cwd=source, env=environment, capture_output=True, text=True
        )
        assert done.returncode == 0, (command, done.stdout, done.stderr)
    check = (
        "from importlib.metadata import entry_points as e; import sglang_agentcache.patches, sglang_agentcache.plugin;"
        "print(sglang_agentcache.__file__, *(p.name for p in e(group='sglang.srt.plugins')))"
    )
    done = subprocess.run(
        [clean / "python", "-c", check],
        cwd=tmp_path,
        env=environment,
        capture_output=True,
        text=True,
        check=True,
    )
    place, *plugins = done.stdout.split()
    assert place.startswith(str(tmp_path / "venv")) and "agentcache" in plugins
