"""Faults of the kinds that a review by faults has found to go unseen, not drawn by lot."""

from __future__ import annotations

from mutants.fault import Fault

CONTRACT = "tests/conformance/test_contract.py"
NODE = "tests/conformance/test_node.py"

FAULTS = [
    Fault("make/make_vec_env.py", "vec.seed(base + start_index)", "vec.seed(base)", "tests/test_native_envs.py"),
    Fault(
        "mpi/spmd.py",
        "* dtype.type(weight) if weight else",
        "* dtype.type(weight) if True else",
        "tests/mpi/test_spmd.py -k weight",
    ),
    Fault(
        "replay/limiter.py",
        "self._due() <= self.tolerance",
        "self._due() < self.tolerance",
        "tests/replay/test_replay_limiter.py",
    ),
    Fault(
        "transport/ring.py",
        "                self.unsent.popleft()\n",
        "                self.unsent.pop()\n",
        f"{CONTRACT} -k 'TestWorkers and fork-2'",
    ),
    Fault(
        "transport/ring.py",
        "if self.unsent or entries[at + _SERIAL]",
        "if entries[at + _SERIAL]",
        f"{CONTRACT} -k 'TestWorkers and fork-2'",
    ),
    Fault(
        "transport/node_link.py",
        "                    if member in self._inboxes:  # else",
        "                    if True:  # else",
        "tests/test_recovery.py",
    ),
    Fault(
        "transport/frames.py",
        "            array[places] = block[kept]\n",
        "            array[: len(places)] = block[kept]\n",
        f"{NODE} -k Connections",
    ),
    Fault(
        "views/sb3.py",
        "        obs = self.vec.reset(seed=self._seeds,",
        "        self._reset_options()\n        obs = self.vec.reset(seed=self._seeds,",
        "tests/views/test_sb3_steps.py -k 'seeds or options'",
    ),
    Fault(
        "wrappers/results.py",
        'begin + len("".join(lines[:whole]).encode())',
        'begin + len("".join(lines[:whole]))',
        "tests/test_monitor.py",
    ),
    Fault(
        "wrappers/vec_monitor.py",
        "self.episode_lengths[begun] = 0",
        "self.episode_lengths[batch.indices[over]] = 0",
        "tests/wrappers/test_vec_monitor.py",
    ),
]
