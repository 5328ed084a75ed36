"""Run by cibuildwheel where a wheel has been installed: the compiled core is there, and envs can be stepped."""

import sys

import vecenvs
from vecenvs import _native

if __name__ == "__main__":
    assert _native.is_compiled(), _native.why_not
    backend = "dummy" if sys.platform == "win32" else "subproc"
    with vecenvs.make_vec_env("CartPole-v1", num_envs=4, seed=0, backend=backend) as vec:
        vec.reset()
        for _ in range(100):
            vec.step([0, 1, 0, 1])
    print(vecenvs.__version__, "steps")
