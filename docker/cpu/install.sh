#!/usr/bin/env bash
# Installs the CPU set and this package (editable) into a virtual environment of its own:
#   docker/cpu/install.sh VENV
# PYTHON      the interpreter that makes the environment (default python3.11)
# TORCH_ARGS  extra pip options for torch alone, such as --index-url with PyTorch's index of CPU wheels
set -euo pipefail

venv=${1:?usage: docker/cpu/install.sh VENV}
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
root=$(cd "$here/../.." && pwd)
python=${PYTHON:-python3.11}
torch_args=${TORCH_ARGS:-}

fail() {
    echo "setup: $1" >&2
    exit 1
}

"$python" -c 'import sys; sys.exit(sys.version_info[:2] != (3, 11))' 2>/dev/null ||
    fail "the CPU set is locked for Python 3.11 and '$python' is not one: set PYTHON to a Python 3.11 interpreter."

# An environment is only built upon where an earlier run came to its end: pip takes a half-installed package for a
# whole one. The mark is removed first and set last, so a run that was cut off is started afresh.
mark="$venv/.cpu-set-complete"
if [ -e "$mark" ]; then
    rm -f "$mark"
elif [ -e "$venv" ]; then
    [ -e "$venv/pyvenv.cfg" ] || [ -z "$(ls -A "$venv")" ] ||
        fail "'$venv' exists and is no virtual environment: move it away or choose another VENV."
    rm -rf "$venv"
fi
if [ ! -e "$venv/pyvenv.cfg" ]; then
    "$python" -m venv "$venv" || fail "'$python -m venv' failed: install your system's venv package for Python 3.11."
fi
py="$venv/bin/python"
install=("$py" -m pip install -qq --disable-pip-version-check --no-input --no-deps --no-compile)

torch=$(grep '^torch==' "$here/requirements.txt")
echo "setup: $torch"
# shellcheck disable=SC2086  # TORCH_ARGS is a list of options
"${install[@]}" $torch_args "$torch"
"$py" "$here/check_torch.py"

echo "setup: the locked packages"
"${install[@]}" -r "$here/requirements.txt" -r "$here/requirements-pd.txt"
# Built from a copy: the build leaves its output beside the sources, and would take up what an older one left there.
copy=$(mktemp -d)
trap 'rm -rf "$copy"' EXIT
cp -R "$here/shim" "$here/shim-triton" "$copy"
"${install[@]}" --no-build-isolation --force-reinstall "$copy/shim" "$copy/shim-triton"
"${install[@]}" --no-build-isolation -e "$root"

echo "setup: byte code"
# A few packages ship files for other Python versions; those stay uncompiled.
"$py" -m compileall -qq -j 0 "$venv/lib" || true
SGLANG_USE_CPU_ENGINE=1 "$py" -c 'import sglang, sglang.srt.server_args' ||
    fail "SGLang cannot be imported from '$venv' (see above)."
touch "$mark"
echo "setup: done in ${SECONDS} s"
