"""Envs that each start a simulator, with a port, a display and a GPU of its own, on every engine.

    python examples/own_simulators.py                                        # two worker processes
    python examples/own_simulators.py --backend dummy                        # in this process
    python -m vecenvs.mpi -n 3 examples/own_simulators.py --backend mpi
    python examples/own_simulators.py --backend ray

The simulator is this file with a number of steps in a hall of ten places; it answers over TCP. A real one takes its
port, `DISPLAY` and `CUDA_VISIBLE_DEVICES` in the same way. Two VecEnvs at once need `--first-port` of their own.

Needs: nothing else; pip install ".[mpi]" or ".[ray]" for these engines
"""

from __future__ import annotations

import argparse
import functools
import json
import os
import socket
import subprocess
import sys
import time
from typing import Any

import gymnasium as gym
import numpy as np
from gymnasium import spaces

from vecenvs import make_vec_env, this_worker

SIMULATOR = os.path.abspath(__file__)


def simulate(port: int) -> None:
    """Be the simulator: answer each request, a line of JSON, with the place in the hall."""
    place = 0
    with socket.create_server(("127.0.0.1", port)) as server:
        print("ready", flush=True)
        connection = server.accept()[0]
        with connection, connection.makefile("rw") as lines:
            for line in lines:
                move = json.loads(line)["move"]
                place = 0 if move is None else max(0, min(9, place + move))
                mine = {name: os.environ[name] for name in ("DISPLAY", "CUDA_VISIBLE_DEVICES")}
                lines.write(json.dumps({"place": place, "port": port, **mine}) + "\n")
                lines.flush()


class SimulatorEnv(gym.Env[Any, Any]):
    """Walk to the end of the hall. Its info has what the simulator says that it was given."""

    def __init__(self, port: int, display: str, gpu: int) -> None:
        self.observation_space = spaces.Box(0, 9, (1,), np.float32)
        self.action_space = spaces.Discrete(3)
        environment = {**os.environ, "DISPLAY": display, "CUDA_VISIBLE_DEVICES": str(gpu)}
        self._process = subprocess.Popen(
            [sys.executable, SIMULATOR, str(port)], env=environment, stdout=subprocess.PIPE, text=True
        )
        assert self._process.stdout is not None
        if self._process.stdout.readline() != "ready\n":
            raise RuntimeError(f"the simulator did not start; is port {port} taken?")
        self._socket = socket.create_connection(("127.0.0.1", port))
        self._lines = self._socket.makefile("rw")

    def reset(self, *, seed: int | None = None, options: dict[str, Any] | None = None) -> Any:
        super().reset(seed=seed)
        answer = self._ask(None)
        return np.array([answer["place"]], np.float32), answer

    def step(self, action: Any) -> Any:
        place = self._ask(int(action) - 1)["place"]
        return np.array([place], np.float32), float(place == 9), place == 9, False, {}

    def close(self) -> None:
        self._lines.close()
        self._socket.close()
        self._process.wait()  # it ends with its connection
        assert self._process.stdout is not None
        self._process.stdout.close()

    def _ask(self, move: int | None) -> dict[str, Any]:
        self._lines.write(json.dumps({"move": move}) + "\n")
        self._lines.flush()
        return dict(json.loads(self._lines.readline()))


def make_env(first_port: int, gpus: int) -> SimulatorEnv:
    """Make an env in its worker, which `this_worker` tells about."""
    me = this_worker()
    assert me.env_index is not None
    return SimulatorEnv(
        port=first_port + me.env_index,  # no other env of this VecEnv has this number
        display=f":{10 + me.index_on_node}",  # one for the envs of a worker
        gpu=me.index_on_node % gpus,  # the workers of a machine take turns
    )


def main() -> None:
    """Show what each env has, then step random actions."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--backend", default="subproc", help="dummy, subproc, mpi or ray")
    parser.add_argument("--num-envs", type=int, default=4)
    parser.add_argument("--num-workers", type=int, default=2, help="of subproc and ray")
    parser.add_argument("--total-timesteps", type=int, default=2000, help="steps of all envs together")
    parser.add_argument("--first-port", type=int, default=9000, help="of env 0")
    parser.add_argument("--gpus", type=int, default=2, help="of each machine")
    parser.add_argument("--seed", type=int, default=0)
    args = parser.parse_args()

    env = functools.partial(make_env, args.first_port, args.gpus)
    workers = {"num_workers": args.num_workers} if args.backend in ("subproc", "ray") else {}
    with make_vec_env(env, num_envs=args.num_envs, seed=args.seed, backend=args.backend, **workers) as vec:
        vec.reset()
        for i, info in enumerate(vec.reset_infos):
            print(f"env {i}: port {info['port']}, display {info['DISPLAY']}, GPU {info['CUDA_VISIBLE_DEVICES']}")
        vec.action_space.seed(args.seed)
        steps, episodes, begun = 0, 0, time.perf_counter()
        while steps < args.total_timesteps:
            dones = vec.step([vec.action_space.sample() for _ in range(args.num_envs)])[2]
            steps += args.num_envs
            episodes += int(dones.sum())
        print(f"{steps} steps, {steps / (time.perf_counter() - begun):.0f}/s, {episodes} episodes", flush=True)


if __name__ == "__main__":
    if len(sys.argv) == 2 and sys.argv[1].isdigit():
        simulate(int(sys.argv[1]))
    else:
        main()
