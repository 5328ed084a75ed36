#!/bin/sh
# Make the environment of the tests' second MPI: setup_mpich.sh PYTHON FOLDER, from the project's root.
# One virtual environment holds one MPI, and the first one has Open MPI.
set -eu
"$1" -m venv --clear "$2"
"$2/bin/python" -m pip --disable-pip-version-check install --quiet --constraint constraints.txt pip setuptools
PYTHONWARNINGS="ignore:Editable installation" \
    "$2/bin/python" -m pip --disable-pip-version-check install --quiet --constraint constraints.txt --no-build-isolation \
    --editable '.[mpich,mujoco,testing]' pytest-timeout
