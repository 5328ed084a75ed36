"""Envs of several agents (PettingZoo's Parallel and AEC envs, RLlib's) behind one VecEnv, whichever engine steps them.

A slot holds one env; its agents are an axis of the slot's arrays. So all that a VecEnv does by env, `send` and `recv`,
subsets, seeds, restarts, autoreset modes, works for these envs as it does for others.
"""

from vecenvs.agents.make import make_multi_agent
from vecenvs.agents.multi_agent_vec_env import MultiAgentVecEnv
from vecenvs.agents.rows import MultiAgentBatch

__all__ = ["MultiAgentBatch", "MultiAgentVecEnv", "make_multi_agent"]
