"""Step many reinforcement-learning environments at once: one contract, interchangeable engines."""

from vecenvs.backends.dummy import DummyVecEnv
from vecenvs.backends.subproc import SubprocVecEnv
from vecenvs.compat.vec_env_wrapper import VecEnvWrapper
from vecenvs.make.make_vec_env import make_vec_env
from vecenvs.vec_env import Batch, VecEnv

__version__ = "0.1.0.dev0"

__all__ = ["Batch", "DummyVecEnv", "SubprocVecEnv", "VecEnv", "VecEnvWrapper", "__version__", "make_vec_env"]
