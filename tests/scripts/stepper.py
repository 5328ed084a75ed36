"""A program that steps a VecEnv and is then killed, interrupted, or ends without close().

    stepper.py BACKEND KWARGS(json) ENDING DIRECTORY

It prints "ready" where the test may strike.
"""

from __future__ import annotations

import functools
import json
import os
import sys
from pathlib import Path
from typing import Any

from vecenvs.backends import backend_class
from vecenvs.pool import pool_base
from vecenvs.testing.envs import CountingEnv, GatedEnv


def main(backend: str, kwargs: dict[str, Any], ending: str, directory: Path) -> None:
    pool_base.CLOSE_GRACE = 1.0  # rather than 5 s: an env that waits at the gate never closes
    gate = directory / "never"
    where = {"in_init": "init", "in_step": "step", "in_reset": "reset"}.get(ending, "nowhere")
    env_fns: list[Any] = [functools.partial(CountingEnv, tag) for tag in range(4)]
    env_fns[0] = functools.partial(GatedEnv, 0, gate, where)
    if ending == "in_init":
        print("ready", flush=True)
    vec = backend_class(backend)(env_fns, **kwargs)
    if ending == "in_reset":
        print("ready", flush=True)
    vec.reset(seed=0)
    if ending != "in_step":
        vec.step([0] * 4)
    if ending == "catch":
        try:
            print("ready", flush=True)
            while True:
                vec.step([0] * 4)
        except KeyboardInterrupt:
            vec.close()
        return
    print("ready", flush=True)
    if ending == "forget":
        return
    if ending == "exec":
        os.execv(sys.executable, [sys.executable, "-c", "import signal; signal.pause()"])
    if ending == "raise":
        raise ZeroDivisionError("the program's own mistake")
    if ending == "forget_mid_step":
        vec.step_async([0] * 4)
        return
    while True:
        vec.step([0] * 4)


if __name__ == "__main__":
    main(sys.argv[1], json.loads(sys.argv[2]), sys.argv[3], Path(sys.argv[4]))
