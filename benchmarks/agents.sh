#!/bin/sh
# Make the environment of `python -m benchmarks.agents`: other libraries that step several envs of several agents.
#
#   sh benchmarks/agents.sh [FOLDER]     default: .venv/agents
#
# PIP_EXTRA_INDEX_URL=https://download.pytorch.org/whl/cpu avoids the CUDA libraries, which nothing here uses.
# vecenvs itself is not installed: the benchmark runs from the repository's root. PufferLib and AgileRL require older
# releases of torch and PettingZoo, and much for training; of both only what their vectorised envs import is installed.
set -eu

here=$(CDPATH= cd -- "$(dirname -- "$0")" && pwd)
folder=${1:-$here/../.venv/agents}
"${PYTHON:-python3}" -m venv --clear "$folder"
pip="$folder/bin/python -m pip --disable-pip-version-check"
$pip install --quiet numpy gymnasium cloudpickle threadpoolctl psutil rich \
    pettingzoo==1.27.0 mpe2==1.1.1 pygame supersuit==3.11.0 torch torchrl==0.14.1 \
    lazy_loader pyyaml accelerate rich-argparse
$pip install --quiet --no-deps pufferlib-core==3.0.23 agilerl==2.58.0
