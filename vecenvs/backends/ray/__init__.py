"""Workers as Ray actors: placed, supervised and replaced by Ray, on this machine or over a cluster."""

from vecenvs.backends.ray.ray_vec_env import RayVecEnv

__all__ = ["RayVecEnv"]
