"""Step until something ends it: endless.py FOLDER [on_failure]. Says which processes there are.

With "uncaught" in place of on_failure the script does not handle a WorkerDied.
"""

import os
import sys
from pathlib import Path

import numpy as np

from vecenvs.backends.mpi import MpiVecEnv
from vecenvs.errors import WorkerDied
from vecenvs.testing.envs import CountingEnv


def tell(name, pid):
    path = Path(sys.argv[1]) / name
    path.with_suffix(".new").write_text(str(pid))
    path.with_suffix(".new").rename(path)


class Env(CountingEnv):
    def getpid(self):
        return os.getpid()


if __name__ == "__main__":
    policy = sys.argv[2] if len(sys.argv) > 2 else "raise"
    vec = MpiVecEnv([Env] * 4, on_failure="restart" if policy == "restart" else "raise")
    vec.reset()
    vec.step(np.zeros(4, np.int64))
    tell("launcher", os.getppid())
    for rank, peer in vec._ranks.peers.items():
        tell(f"rank{rank}", peer.pid)
    tell("hosted", vec.env_method("getpid")[0])
    tell("rank0", os.getpid())
    steps = 0
    while not (Path(sys.argv[1]) / "enough").exists():
        try:
            infos = vec.step(np.zeros(4, np.int64))[3]
        except WorkerDied as error:
            if policy == "uncaught":
                raise
            print(f"died: {error}", flush=True)
            if policy == "raise":
                print("the others:", vec.get_attr("tag", [0 if 3 in error.indices else 3]), flush=True)
                vec.close()
                with MpiVecEnv([Env] * 4) as again:
                    again.reset()
                    print("again on", sorted({t.where for t in again._workers.transports}), flush=True)
                break
        restarted = [i for i, info in enumerate(infos) if "worker_restarted" in info]
        if restarted:
            print("restarted:", restarted, sorted({t.where for t in vec._workers.transports}), flush=True)
            break
        steps += 1
    print("the end", flush=True)
