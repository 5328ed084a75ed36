"""A node with a leader: one message each way, and what the deaths of a worker and of the leader cost."""

import os
import signal
from pathlib import Path

import numpy as np

from vecenvs.backends.mpi import MpiVecEnv
from vecenvs.errors import WorkerDied
from vecenvs.testing.envs import CountingEnv
from vecenvs.transport.frames import Frames


class Env(CountingEnv):
    def pids(self):
        server = os.getppid()
        return os.getpid(), Path(f"/proc/{server}/task/{server}/children").read_text()


def make(**common):
    vec = MpiVecEnv([Env] * 6, num_workers=3, transport="messages", **common)
    assert all(worker["gathered"] for worker in vec.stats()["workers"])
    vec.reset()
    return vec, np.zeros(6, np.int64)


def leader_of(vec):
    """Return the only process of the rank's fork server that has no env."""
    found = vec.env_method("pids")
    (leader,) = {int(pid) for pid in found[0][1].split()} - {pid for pid, _ in found}
    return leader


def restarted(vec, actions):
    """Step until envs are restarted, and return which."""
    while True:
        found = [i for i, info in enumerate(vec.step(actions)[3]) if "worker_restarted" in info]
        if found:
            return found


def count_messages():
    counts = {"pack": 0, "unpack": 0}

    def counted(name, function):
        def call(*args, **kwargs):
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    for name in counts:
        setattr(Frames, name, counted(name, getattr(Frames, name)))
    return counts


if __name__ == "__main__":
    vec, actions = make()
    leader_of(vec)
    os.kill(vec.env_method("pids", indices=[2])[0][0], signal.SIGKILL)
    try:
        while True:
            vec.step(actions)
    except WorkerDied as error:
        print("a worker:", error.indices, vec.get_attr("tag", [0, 5]), flush=True)
    vec.close()

    vec, actions = make(on_failure="restart")
    os.kill(vec.env_method("pids", indices=[2])[0][0], signal.SIGKILL)
    print("a worker restarted:", restarted(vec, actions), flush=True)
    vec.step(actions)
    os.kill(leader_of(vec), signal.SIGKILL)
    print("the leader's node restarted:", restarted(vec, actions), flush=True)
    vec.step(actions)
    vec.close()

    vec, actions = make()
    os.kill(leader_of(vec), signal.SIGKILL)
    try:
        while True:
            vec.step(actions)
    except WorkerDied as error:
        print("the leader:", str(error), flush=True)
    vec.close()

    vec, actions = make()
    counts = count_messages()
    for _ in range(50):
        vec.step(actions)
    print("messages:", counts["pack"], counts["unpack"] < 100, flush=True)
    vec.close()
