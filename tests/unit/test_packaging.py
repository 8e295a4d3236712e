"""What an installation contains and how it is found: wheel, editable install, entry point, commands."""

import importlib
import os
import subprocess
import sys
import tomllib
import zipfile
from importlib.metadata import distribution, version
from pathlib import Path
from typing import Any

import pytest
from setuptools import find_packages

import eval.__main__ as command_line
import sglang_agentcache

SOURCES = ("sglang_agentcache", "patches", "pyproject.toml", "setup.py", "LICENSE", "README.md")
PRINT_PATCHES = "import sglang_agentcache.patches as p; print(p.__file__)"


def run(*command: str | Path, path: Path | None = None, **options: Any) -> subprocess.CompletedProcess[str]:
    """Run ``command`` with ``path`` on ``PYTHONPATH`` and this interpreter as ``PYTHON``; capture output."""
    env = {**os.environ, "PYTHON": sys.executable} | ({"PYTHONPATH": str(path)} if path else {})
    return subprocess.run(command, env=env, capture_output=True, text=True, **options)


def python_files(root: Path, package: Path) -> set[str]:
    return {path.relative_to(root).as_posix() for path in package.rglob("*.py")}


@pytest.fixture(scope="module")
def wheel(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> zipfile.ZipFile:
    """The wheel of a copy of the sources, so that no build output lands in the checkout."""
    copy, out = tmp_path_factory.mktemp("source"), tmp_path_factory.mktemp("wheel")
    listing = ("git", "ls-files", "--cached", "--others", "--exclude-standard", "--", *SOURCES)
    for name in run(*listing, cwd=repository, check=True).stdout.splitlines():
        if (repository / name).exists():
            (copy / name).parent.mkdir(parents=True, exist_ok=True)
            (copy / name).write_bytes((repository / name).read_bytes())
    default = copy / "sglang_agentcache" / "predictor" / "default"
    default.mkdir(parents=True, exist_ok=True)
    (default / "probe.bin").write_bytes(b"data")
    pip = (sys.executable, "-m", "pip", "wheel", "-qq", "--no-deps", "--no-build-isolation")
    run(*pip, "-w", out, copy, check=True)
    (path,) = out.iterdir()
    return zipfile.ZipFile(path)


def test_wheel_has_every_module_the_patches_and_the_data(wheel: zipfile.ZipFile, repository: Path) -> None:
    names = set(wheel.namelist())
    assert python_files(repository, repository / "sglang_agentcache") <= names
    patches = {f"sglang_agentcache/{name}" for name in python_files(repository, repository / "patches")}
    assert "sglang_agentcache/patches/__init__.py" in patches
    assert patches <= names
    assert {"sglang_agentcache/py.typed", "sglang_agentcache/predictor/default/probe.bin"} <= names


def test_wheel_has_nothing_else(wheel: zipfile.ZipFile) -> None:
    roots = {name.split("/")[0] for name in wheel.namelist()}
    assert roots == {"sglang_agentcache", f"sglang_agentcache-{sglang_agentcache.__version__}.dist-info"}
    assert any(name.endswith(".dist-info/licenses/LICENSE") for name in wheel.namelist())


def test_wheel_imports_its_patches(wheel: zipfile.ZipFile, tmp_path: Path) -> None:
    wheel.extractall(tmp_path)
    found = run(sys.executable, "-S", "-c", PRINT_PATCHES, path=tmp_path, cwd=tmp_path, check=True)
    assert Path(found.stdout.strip()) == tmp_path / "sglang_agentcache" / "patches" / "__init__.py"


def test_every_package_directory_is_importable_as_a_package(repository: Path) -> None:
    """A directory of modules without ``__init__.py`` works in the checkout and is missing in the wheel."""
    for root in (repository / "sglang_agentcache", repository / "patches"):
        directories = {path.parent for path in root.rglob("*.py")}
        packages = {root, *(root / name.replace(".", "/") for name in find_packages(str(root)))}
        assert directories == packages


def test_editable_install_finds_the_patches_from_anywhere(repository: Path, tmp_path: Path) -> None:
    found = run(sys.executable, "-c", PRINT_PATCHES, cwd=tmp_path, check=True)
    assert Path(found.stdout.strip()) == repository / "patches" / "__init__.py"


def test_metadata() -> None:
    assert version("sglang-agentcache") == sglang_agentcache.__version__
    (plugin,) = distribution("sglang-agentcache").entry_points.select(group="sglang.srt.plugins")
    assert (plugin.name, plugin.value) == ("agentcache", "sglang_agentcache.plugin:activate")
    requirements = distribution("sglang-agentcache").requires or []
    assert "sglang==0.5.23" in requirements


def test_importing_the_package_is_cheap() -> None:
    loaded = run(sys.executable, "-c", "import sys, sglang_agentcache; print(*sys.modules)", check=True)
    assert "sglang_agentcache" in loaded.stdout.split()
    assert not {"sglang", "torch", "numpy", "sklearn"} & set(loaded.stdout.split())


def test_lock_pins_every_requirement_exactly(repository: Path) -> None:
    lines = (repository / "docker/cpu/requirements.txt").read_text().splitlines()
    pins = dict(line.split("==") for line in lines if line and not line.startswith("#"))
    project = tomllib.loads((repository / "pyproject.toml").read_text())["project"]
    assert f"sglang=={pins['sglang']}" in project["dependencies"]
    assert {name: version(name).split("+")[0] for name in pins} == pins


def test_torch_is_a_cpu_build(repository: Path) -> None:
    assert run(sys.executable, repository / "docker/cpu/check_torch.py").returncode == 0


def test_a_cuda_torch_is_refused_with_one_sentence(repository: Path, tmp_path: Path) -> None:
    package = tmp_path / "torch"
    package.mkdir()
    (package / "__init__.py").write_text("raise OSError('libcudart.so: cannot open shared object file')\n")
    (package / "version.py").write_text("cuda = '13.0'\nhip = None\n")
    refused = run(sys.executable, repository / "docker/cpu/check_torch.py", path=tmp_path)
    assert refused.returncode == 1
    assert refused.stderr.count("\n") == 1
    assert "built for CUDA 13.0" in refused.stderr
    assert "TORCH_ARGS" in refused.stderr


def test_setup_never_removes_a_directory_that_is_no_environment(repository: Path, tmp_path: Path) -> None:
    (tmp_path / "precious").mkdir()
    (tmp_path / "precious" / "file").touch()
    refused = run(repository / "docker/cpu/install.sh", tmp_path / "precious")
    assert refused.returncode == 1
    assert "is no virtual environment" in refused.stderr
    assert (tmp_path / "precious" / "file").exists()


def test_eval_lists_the_commands_it_has_with_their_summaries(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command_line.main(["--help"])
    assert stopped.value.code == 0
    lines = capsys.readouterr().out.split("commands:\n")[1].splitlines()
    listed = dict(line.split(None, 1) for line in lines)
    assert listed == command_line.summaries()
    assert listed["tiny-model"].startswith("Write a tiny model directory")


@pytest.mark.parametrize("command", sorted(command_line.summaries()))
def test_each_command_explains_itself(command: str, capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command_line.main([command, "--help"])
    assert stopped.value.code == 0
    assert f"python -m eval {command}" in capsys.readouterr().out
    module = importlib.import_module(command_line.module_name(command))
    assert len((module.__doc__ or "").partition("\n")[0]) > 10


def test_eval_refuses_an_unknown_command(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as stopped:
        command_line.main(["tiny-mode"])
    assert stopped.value.code == 2
    assert "'tiny-mode'" in capsys.readouterr().err


def test_eval_command_that_is_a_keyword_has_an_importable_module_name() -> None:
    assert command_line.module_name("import") == "eval.import_"
    assert command_line.module_name("tiny-model") == "eval.tiny_model"
