"""The names of the package itself: the same objects as by the deep paths, and no slower to import."""

from __future__ import annotations

import importlib
import pickle
import subprocess
import sys
from pathlib import Path

import pytest

import vecenvs

ROOT = Path(vecenvs.__file__).parents[1]
# Public modules, whose names are also found in the package.
DEEP = {
    "vecenvs.backends.dummy": "DummyVecEnv",
    "vecenvs.backends.subproc": "SubprocVecEnv",
    "vecenvs.backends.mpi": "MpiVecEnv",
    "vecenvs.backends.ray": "RayVecEnv",
    "vecenvs.errors": "EnvError WorkerDied StepTimeout StartTimeout SpaceMismatch ClosedError VecEnvError "
    "AlreadySteppingError NotSteppingError BackendUnavailable ResetNeededError",
    "vecenvs.vec_env": "Batch VecEnv",
    "vecenvs.batch.info_arrays": "info_columns",
    "vecenvs.evaluation": "Evaluation evaluate",
    "vecenvs.views": "as_gymnasium as_pfrl as_sb3 as_tianshou from_gymnasium",
    "vecenvs.wrappers": "Monitor VecCheckNan VecExtractDictObs VecFrameStack VecMonitor VecNormalize VecRecorder "
    "VecTransposeImage VecVideoRecorder",
}


@pytest.mark.parametrize("module", DEEP)
def test_names_are_those_of_the_deep_paths(module: str) -> None:
    for name in DEEP[module].split():
        assert getattr(vecenvs, name) is getattr(importlib.import_module(module), name)
        assert name in vecenvs.__all__
        assert name in dir(vecenvs)


def test_modules_need_no_import_of_their_own() -> None:
    code = "import vecenvs; vecenvs.backends.BACKENDS, vecenvs.wrappers.monitor.Monitor, vecenvs.errors"
    subprocess.run([sys.executable, "-c", code], check=True, cwd=ROOT)


def test_all_names_exist() -> None:
    assert sorted(vecenvs.__all__) == vecenvs.__all__
    assert all(getattr(vecenvs, name) is not None for name in vecenvs.__all__)
    assert {name for names in DEEP.values() for name in names.split()} < {*vecenvs.__all__}


def test_other_names_are_errors() -> None:
    with pytest.raises(AttributeError, match="module 'vecenvs' has no attribute 'MpiVecEvn'"):
        vecenvs.MpiVecEvn  # noqa: B018
    with pytest.raises(ImportError):
        from vecenvs import RayVecEvn  # noqa: F401


def test_classes_are_pickled_by_their_own_modules() -> None:
    assert pickle.loads(pickle.dumps(vecenvs.MpiVecEnv)) is vecenvs.MpiVecEnv
    assert vecenvs.MpiVecEnv.__module__.startswith("vecenvs.backends.mpi")


@pytest.mark.parametrize(
    ("program", "absent"),
    [
        ("import vecenvs", "vecenvs.backends.mpi vecenvs.backends.ray vecenvs.views vecenvs.replay"),
        ("import vecenvs; vecenvs.as_gymnasium", "vecenvs.backends.mpi vecenvs.backends.ray stable_baselines3 torch"),
        ("from vecenvs import *", "mpi4py ray stable_baselines3 torch matplotlib"),
    ],
)
def test_only_what_is_used_is_imported(program: str, absent: str) -> None:
    code = f"{program}\nimport sys; sys.exit(' '.join({{*{absent.split()!r}}} & {{*sys.modules}}) or 0)"
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=False)
    assert (run.returncode, run.stderr) == (0, "")
