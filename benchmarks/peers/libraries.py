"""How each library is driven: the tightest loop that its documentation allows.

Every function here makes the envs of a `Job`, resets them, and returns what steps them.
"""

from __future__ import annotations

from dataclasses import replace
from functools import partial
from importlib import metadata
from itertools import cycle
from typing import Any

import gymnasium as gym
import numpy as np

from benchmarks.loop_candidates import LockStepCandidate
from benchmarks.peers.grid import ATTR, PREPROCESSED
from benchmarks.peers.steppers import InPart, Job, LockStep, NextStep
from benchmarks.stack.serve import start_ray
from vecenvs.bench.candidates import from_env_fn, parse
from vecenvs.bench.contest import Stepper
from vecenvs.bench.learner import LearningCandidate

ENVPOOL = {  # its envs are written in C++: the nearest one to each workload
    "CartPole-v1": ("CartPole-v1", {}),
    "Pendulum-v1": ("Pendulum-v1", {}),
    "HalfCheetah-v5": ("HalfCheetah-v5", {}),
    "ALE/Pong-v5": (
        "Pong-v5",
        {"frame_skip": 4, "stack_num": 1, "gray_scale": False, "img_height": 210, "img_width": 160},
    ),
    PREPROCESSED: ("Pong-v5", {"frame_skip": 4, "stack_num": 4}),
}


# No library


def bound(job: Job) -> Stepper:
    return LockStepCandidate("", job.env_fn, job.cores).make(job.num_envs)


# vecenvs


def ours(job: Job, setting: str) -> Stepper:
    backend = parse(setting)
    if job.attr:
        backend = replace(backend, options={"info_attrs": (ATTR,), **backend.options})
    vec = _reset(from_env_fn(job.env_fn)(job.num_envs, backend))
    read = partial(vec.info_array, ATTR) if job.attr else None
    return LockStep(job, vec.step, job.actions(vec.action_space), vec.close, read)


def ours_in_part(job: Job, setting: str) -> Stepper:
    iterations = job.num_envs * job.think
    made = LearningCandidate("", parse(setting), from_env_fn(job.env_fn), iterations, halves=True)
    return made.make(job.num_envs)


def _reset(vec: Any, **how: Any) -> Any:
    try:
        vec.reset(**how)
    except BaseException:
        vec.close()
        raise
    return vec


# Others


def gymnasium(job: Job, cls: str) -> Stepper:
    vec = _reset(getattr(gym.vector, cls)(job.env_fns(), copy=False))
    read = partial(vec.get_attr, ATTR) if job.attr else None
    return NextStep(job, vec.step, job.actions(vec.single_action_space), vec.close, read)


def sb3(job: Job, cls: str, **kwargs: Any) -> Stepper:
    from stable_baselines3.common import vec_env

    vec = _reset(getattr(vec_env, cls)(job.env_fns(), **kwargs))
    read = partial(vec.get_attr, ATTR) if job.attr else None
    return LockStep(job, vec.step, job.actions(vec.action_space), vec.close, read)


def tianshou(job: Job, cls: str) -> Stepper:
    vec, batches = _tianshou_vec(job, cls)

    def advance(actions: Any) -> None:
        _, _, terminated, truncated, _ = vec.step(actions)
        over = np.flatnonzero(terminated | truncated)
        if len(over):
            vec.reset(over)

    read = partial(vec.get_env_attr, ATTR) if job.attr else None
    return LockStep(job, advance, batches, vec.close, read)


def tianshou_in_part(job: Job, cls: str) -> Stepper:
    vec, batches = _tianshou_vec(job, cls, wait_num=job.num_envs // 2)
    actions = cycle(batches)
    ready = np.arange(job.num_envs)

    def exchange() -> tuple[int, int]:
        nonlocal ready
        _, _, terminated, truncated, infos = vec.step(next(actions)[: len(ready)], ready)
        ready = np.array([info["env_id"] for info in infos])
        over = ready[terminated | truncated]
        if len(over):
            vec.reset(over)
        job.learn(len(ready))
        return len(ready), len(ready)

    return InPart(job, exchange, vec.close)


def _tianshou_vec(job: Job, cls: str, **kwargs: Any) -> tuple[Any, list[Any]]:
    from tianshou import env

    if cls == "RayVectorEnv":
        start_ray()
    vec = _reset(getattr(env, cls)(job.env_fns(), **kwargs))
    spaces = vec.action_space
    return vec, job.actions(spaces[0] if isinstance(spaces, list) else spaces)


def torchrl(job: Job) -> Stepper:
    from torchrl.envs import GymWrapper, ParallelEnv

    def make() -> Any:
        return GymWrapper(job.env_fn(), categorical_action_encoding=True)

    vec = ParallelEnv(job.num_envs, make, mp_start_method="fork")
    try:
        state = vec.reset()
        batches = [vec.full_action_spec["action"].rand() for _ in range(64)]
    except BaseException:
        vec.close()
        raise

    def advance(actions: Any) -> None:
        nonlocal state
        _, state = vec.step_and_maybe_reset(state.set("action", actions))

    return LockStep(job, advance, batches, vec.close)


def pufferlib(job: Job, workers: str, distribution: str = "pufferlib") -> Stepper:
    vec = puffer_vec(job, workers, distribution)
    vec.reset()
    return NextStep(job, vec.step, job.actions(vec.single_action_space), vec.close)


def pufferlib_in_part(job: Job, workers: str, distribution: str = "pufferlib") -> Stepper:
    half = job.num_envs // 2
    vec = puffer_vec(job, workers, distribution, batch_size=half)
    actions = cycle(job.actions(vec.single_action_space, half))
    over = np.zeros(job.num_envs, bool)
    vec.async_reset()
    vec.recv()
    vec.send(next(actions))

    def exchange() -> tuple[int, int]:
        _, _, terminated, truncated, *_, indices, _ = vec.recv()
        resets = int(np.count_nonzero(over[indices]))
        over[indices] = terminated | truncated
        job.learn(half)
        vec.send(next(actions))
        return half, half - resets

    return InPart(job, exchange, vec.close)


def puffer_vec(job: Job, workers: str, distribution: str = "pufferlib", **kwargs: Any) -> Any:
    metadata.version(distribution)  # PackageNotFoundError, an ImportError, where this version of PufferLib is missing
    from pufferlib import vector
    from pufferlib.emulation import GymnasiumPufferEnv

    make = partial(GymnasiumPufferEnv, env_creator=job.env_fn)
    if workers == "serial":
        return vector.make(make, num_envs=job.num_envs, backend=vector.Serial)
    count = min(job.num_envs, {"one": 1, "cores": job.cores}[workers])
    # `overwork` only lifts a refusal where the processor has fewer cores than CPUs.
    return vector.make(
        make, num_envs=job.num_envs, backend=vector.Multiprocessing, num_workers=count, overwork=True, **kwargs
    )


def envpool(job: Job) -> Stepper:
    vec = envpool_vec(job)
    vec.reset()
    return NextStep(job, vec.step, job.actions(vec.action_space), vec.close)


def envpool_vec(job: Job) -> Any:
    import envpool as library

    name, options = ENVPOOL[job.env]
    return library.make(name, env_type="gymnasium", num_envs=job.num_envs, num_threads=job.cores, **options)
