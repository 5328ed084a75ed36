"""`make_multi_agent`: envs of several agents, on any engine."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any

from vecenvs.agents.agents_env import AgentsEnv
from vecenvs.agents.multi_agent_vec_env import MultiAgentVecEnv
from vecenvs.agents.roster import Groups, check_groups
from vecenvs.arguments import check_choice, listed, parse_count
from vecenvs.backends import backend_class
from vecenvs.make.auto import choose, has_processes_alone, needs_workers, workers_for
from vecenvs.vec_env import Seeds

ENDS = ("all", "any")


def make_multi_agent(
    env_fn: Callable[[], Any] | Sequence[Callable[[], Any]],
    num_envs: int | None = None,
    groups: Groups = None,
    backend: str | None = None,
    seed: Seeds = None,
    *,
    ends: str = "all",
    num_workers: int | None = None,
    **backend_kwargs: Any,
) -> MultiAgentVecEnv:
    """Make a VecEnv of envs of several agents, alive at once or by turns.

        from mpe2 import simple_spread_v3
        from vecenvs import make_multi_agent

        with make_multi_agent(simple_spread_v3.parallel_env, num_envs=8, seed=0) as vec:
            obs = vec.reset()
            for _ in range(100):
                actions = {name: policy(obs[name]) for name in vec.groups}
                obs, rewards, dones, infos = vec.step(actions)

    The envs are PettingZoo's (ParallelEnv or AECEnv), RLlib's MultiAgentEnv, or others of one of these forms. The
    library itself is not needed.

    Args:
        env_fn: a function that makes an env, or a list with one for each env.
        num_envs: the number of envs; None for one for each function in the list.
        groups: name -> agents; the agents of a group have equal spaces. None makes groups of equal spaces, named as
            their agents are without the number at the end, "agents" if there is only one.
        backend: "dummy", "subproc", "mpi" or "ray"; None chooses as `make_vec_env` does.
        seed: the seeds of the first resets, as in `VecEnv.seed`: env i, with all its agents, gets seed + i.
        ends: when an env's episode ends: with its last agent ("all"), or with the first one ("any").
        num_workers: as in the backend's class.
        **backend_kwargs: further arguments of the backend's class, such as `autoreset` or `on_failure`.

    Returns:
        The VecEnv. Its class says how its rows look.

    Raises:
        TypeError: `env_fn` is no function.
        ValueError: `ends` or `backend` is unknown.
        EnvError: an env could not be made, or does not name its agents, has spaces without an array form, or agents
            that `groups` do not hold each once and beside others of equal spaces.
    """
    fns = [env_fn] * parse_count("num_envs", num_envs) if callable(env_fn) else listed(env_fn)
    if not isinstance(fns, list) or not fns or not all(map(callable, fns)):
        raise TypeError(f"env_fn must be a function that makes an env, or a list of such functions, not {env_fn!r}")
    if not callable(env_fn) and num_envs not in (None, len(fns)):
        raise ValueError(f"num_envs={num_envs}, but env_fn has {len(fns)} functions: leave num_envs out")
    check_groups(groups)
    check_choice("ends", ends, ENDS)
    given = None if groups is None else {name: tuple(members) for name, members in groups.items()}
    makers = [functools.partial(_make, fn, given, ends) for fn in fns]
    num_workers = workers_for(num_workers, len(fns), backend, backend_kwargs)
    if backend is None and not has_processes_alone(backend_kwargs):
        in_workers = backend_kwargs.get("autoreset") == "async" or needs_workers(backend_kwargs)
        choice = choose(len(fns), num_workers=num_workers, in_workers=in_workers, ranks=False)
        backend, options = choice.backend, dict(choice.options)
    else:
        backend, options = backend or "subproc", {} if num_workers is None else {"num_workers": num_workers}
    vec = backend_class(backend)(makers, **{**options, **backend_kwargs})
    try:
        if seed is not None:
            vec.seed(seed)
        return MultiAgentVecEnv(vec)
    except BaseException:
        vec.close()
        raise


def _make(env_fn: Callable[[], Any], groups: Groups, ends: str) -> AgentsEnv:
    return AgentsEnv(env_fn(), groups, ends)
