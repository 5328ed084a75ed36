"""A cluster of several nodes on one machine, of which some are lost: a scenario of test_ray_nodes.py."""

from __future__ import annotations

import contextlib
import functools
import logging
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import ray
from ray.cluster_utils import Cluster

from vecenvs import DummyVecEnv
from vecenvs.backends.ray import RayVecEnv
from vecenvs.backends.ray import transport as ray_transport
from vecenvs.errors import BackendUnavailable, NotSteppingError, WorkerDied
from vecenvs.testing import leaks
from vecenvs.testing.envs import CountingEnv
from vecenvs.transport.frames import Frames

THERE = {"num_cpus": 0.5, "resources": {"there": 0.1}}
SMALL = {"object_store_memory": 80 * 2**20, "num_cpus": 1}
FNS = [functools.partial(CountingEnv, i) for i in range(4)]
ACTIONS = [0, 1, 2, 0]


def compare(cluster: Cluster) -> None:
    """Two workers on another node: every row as by the dummy engine."""
    with RayVecEnv(FNS, 2, actor_options=THERE) as vec, DummyVecEnv(FNS) as plain:
        assert [(w["why"], w["gathered"]) for w in vec.stats()["workers"]] == [("on another node", True)] * 2
        assert (vec.reset(seed=1) == plain.reset(seed=1)).all()
        for _ in range(12):
            (obs, rewards, dones, infos), expected = vec.step(ACTIONS), plain.step(ACTIONS)
            assert (obs == expected[0]).all()
            assert (rewards == expected[1]).all()
            assert (dones == expected[2]).all()
            np.testing.assert_equal(infos, expected[3])
        vec.send([0, 1], [3, 0])
        assert sorted(vec.recv(2).indices.tolist()) == [0, 3]
        vec.reset()
        counts = count_frames()
        for _ in range(50):
            vec.step(ACTIONS)
        assert counts["pack"] == 50, counts
        assert counts["unpack"] < 100, counts


def leader(cluster: Cluster) -> None:
    """Kill a worker, which costs its own envs, and a leader, which costs those of its node. Nothing is left."""
    names = leaks.shared_memory_files()
    with RayVecEnv(FNS, 2, actor_options=THERE) as vec:
        vec.reset()
        os.kill(vec.stats()["workers"][1]["pid"], signal.SIGKILL)
        with pytest.raises(WorkerDied) as caught:
            step_on(vec, 20.0)
        assert caught.value.indices == (2, 3)
        assert vec.get_attr("tag", [0, 1]) == [0, 1]
    with RayVecEnv(FNS, 2, actor_options=THERE, on_failure="restart") as vec:
        vec.reset()
        os.kill(vec.stats()["workers"][1]["pid"], signal.SIGKILL)
        assert until_restarted(vec) == [2, 3]
        vec.step(ACTIONS)
        os.kill(leader_of(vec).location.pid, signal.SIGKILL)
        back = until_restarted(vec)
        while back != [0, 1, 2, 3]:  # one may have come back before the other was seen to be gone
            back = sorted({*back, *until_restarted(vec)})
        assert all(worker["gathered"] for worker in vec.stats()["workers"]), vec.stats()
        for _ in range(3):
            vec.step(ACTIONS)
    with RayVecEnv(FNS, 2, actor_options=THERE) as vec:
        vec.reset()
        os.kill(leader_of(vec).location.pid, signal.SIGKILL)
        with pytest.raises(WorkerDied):
            step_on(vec, 20.0)
    check_left(names)


def killed(cluster: Cluster) -> None:
    """Kill the caller of a VecEnv with a leader: its actors end, and leave no names of semaphores."""
    names = leaks.shared_memory_files()
    script = (
        "import sys, functools; sys.path[:0] = ['tests/ray']\n"
        "from two_nodes import *\n"
        f"ray.init(address={cluster.address!r}, logging_level='error')\n"
        "vec = RayVecEnv(FNS, 2, actor_options=THERE); vec.reset(); vec.step_async(ACTIONS); print('up', flush=True)\n"
        "input()\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "up\n"
        assert len(actors()) == 3
        process.kill()
    check_left(names)


def check_left(names: Collection[str]) -> None:
    """Check that no actor is left, and no other files in shared memory than `names`, within some seconds."""
    end = time.monotonic() + 20.0
    while (left := [*actors(), *leaks.files_left(names)]) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left


def leader_of(vec: RayVecEnv) -> Any:
    (found,) = vec._actors.leaders.values()
    return found


def actors() -> list[str]:
    """Return the titles of the processes of actors of this machine's cluster."""
    return [
        words for words in leaks.processes_with("RAY_TMPDIR", os.environ["RAY_TMPDIR"]).values() if "Actor" in words
    ]


def count_frames() -> dict[str, int]:
    """Count, from now on, the messages of this process to leaders and from them."""
    counts = {"pack": 0, "unpack": 0}

    def counted(name: str, function: Any) -> Any:
        def call(*args: Any, **kwargs: Any) -> Any:
            counts[name] += 1
            return function(*args, **kwargs)

        return call

    for name in counts:
        setattr(Frames, name, counted(name, getattr(Frames, name)))
    return counts


def mixed(cluster: Cluster) -> None:
    """One worker on the caller's node, one on another: both ways in one VecEnv."""
    with RayVecEnv(FNS, 2, placement="spread", actor_options={"num_cpus": 1}) as vec:
        assert vec.stats()["transports"] == {"shared": 1, "messages": 1}, vec.stats()
        assert not any(worker["gathered"] for worker in vec.stats()["workers"]), "a worker alone has no leader"
        assert vec.reset(seed=1)[:, 0].tolist() == [0, 1, 2, 3]
        assert vec.step(ACTIONS)[0][:, 2].tolist() == [1] * 4
        vec.send(ACTIONS)
        assert len(vec.recv(4)) == 4


def lost(cluster: Cluster) -> None:
    """Kill a node: WorkerDied within some seconds, naming the node and the envs; the rest can still be used."""
    with RayVecEnv(FNS, 2, actor_options={"num_cpus": 1}, placement="spread") as vec:
        vec.reset()
        where = [w["transport"] for w in vec.stats()["workers"]].index("messages")
        node = vec.stats()["workers"][where]["node"]
        remove(cluster)
        begun = time.monotonic()
        with pytest.raises(WorkerDied) as caught:
            step_on(vec, 30.0)
        print(f"told after {time.monotonic() - begun:.1f} s: {caught.value}")
        assert caught.value.worker == where
        assert caught.value.indices == ((0, 1), (2, 3))[where]
        assert node[:8] in str(caught.value)
        mine = [2, 3] if where == 0 else [0, 1]
        with contextlib.suppress(NotSteppingError):  # their rows of that step, if it had been sent to them
            assert vec.recv(2).indices.tolist() == mine
        assert vec.reset(mine)[:, 0].tolist() == mine
        assert vec.get_attr("tag", mine) == mine


def restart(cluster: Cluster) -> None:
    """on_failure="restart": the shard comes back on a third node, with new episodes; the others notice nothing."""
    with RayVecEnv(FNS, 2, actor_options=THERE, on_failure="restart") as vec:
        vec.reset(seed=0)
        vec.step(ACTIONS)
        assert all(worker["gathered"] for worker in vec.stats()["workers"])
        node = vec.stats()["workers"][0]["node"]
        cluster.add_node(resources={"there": 1}, **SMALL)
        remove(cluster)
        for _ in range(1000):
            obs, _, dones, infos = vec.step(ACTIONS)
            if any("worker_restarted" in info for info in infos):
                break
            time.sleep(0.01)
        back = [i for i, info in enumerate(infos) if info.get("worker_restarted")]
        assert back, "nobody noticed"
        assert dones[back].all()
        assert all(obs[i][2] == 0 for i in back), "no action was replayed on a new env"
        assert vec.stats()["restarts"] >= 1
        for _ in range(3):
            vec.step(ACTIONS)
        assert all(w["node"] != node for w in vec.stats()["workers"])


def move(cluster: Cluster) -> None:
    """Lose a node, with no room elsewhere: its worker moves to the node of the living one, whose CPU both share."""
    with (
        RayVecEnv(
            FNS, 2, actor_options={"num_cpus": 1}, placement="spread", on_failure="restart", ready_timeout=10.0
        ) as vec,
        noted() as notes,
    ):
        lost, mine = lose_one(cluster, vec)
        back = until_restarted(vec)
        assert back == lost
        for _ in range(3):
            obs = vec.step(ACTIONS)[0]
        steps = (obs[:, 1] - 1) * 5 + obs[:, 2]  # of this env, over all its episodes
        assert (steps[lost] == 3).all()
        assert (steps[mine] == vec.stats()["steps"]).all(), "the others notice nothing"
        head = ray.get_runtime_context().get_node_id()
        assert [w["node"] for w in vec.stats()["workers"]] == [head] * 2
        assert vec.stats()["restarts"] >= 1  # a first one may have gone to the lost node, of which Ray hears late
        assert any("shares the CPUs of others" in note and "0 CPU is free" in note for note in notes), notes


def wait(cluster: Cluster) -> None:
    """Lose a node, whose worker waits for another one, longer than a start may take; the others go on meanwhile."""
    with RayVecEnv(
        FNS, 2, actor_options={"num_cpus": 1}, placement="spread", on_failure="restart", ready_timeout=8.0,
        on_lost_node="wait", start_timeout=6.0,
    ) as vec, noted() as notes:  # fmt: skip
        lost, mine = lose_one(cluster, vec)
        vec.send(ACTIONS)
        end = time.monotonic() + 40.0
        while not any("waits for a place" in note for note in notes) and time.monotonic() < end:  # Ray hears late
            again = vec.recv(1, timeout=20.0).indices.tolist()
            vec.send([ACTIONS[i] for i in again], again)
            time.sleep(0.01)
        assert any("waits for a place" in note for note in notes), notes
        for _ in range(60):
            again = vec.recv(1, timeout=5.0).indices.tolist()
            assert set(again) <= set(mine)
            vec.send([ACTIONS[i] for i in again], again)
            time.sleep(0.05)
        cluster.add_node(**SMALL)
        batch = vec.recv(4, timeout=40.0)
        assert {i for i, info in zip(batch.indices, batch.infos, strict=True) if "worker_restarted" in info} == {*lost}
        vec.step(ACTIONS)
        assert len({w["node"] for w in vec.stats()["workers"]}) == 2


def elastic(cluster: Cluster) -> None:
    """Begin with one node of two; take in a worker when the other one comes, and give its envs back when it is lost."""
    closed = Path(os.environ["RAY_TMPDIR"], "closed")
    fns = [functools.partial(CountingEnv, i, closed_file=closed) for i in range(4)]
    options: dict[str, Any] = {"min_workers": 1, "actor_options": {"num_cpus": 1}}
    with RayVecEnv(fns, 2, on_failure="restart", **options) as vec, DummyVecEnv(FNS) as plain, noted() as notes:
        (guest,) = (at for at, worker in enumerate(vec.stats()["workers"]) if worker["shares"])
        mine, others = ([2, 3], [0, 1]) if guest else ([0, 1], [2, 3])
        assert vec.stats()["waiting"] == 1
        (pending,) = vec._actors.waiting.values()  # what an autoscaler sees
        assert pending.request is vec._actors.request
        head = ray.get_runtime_context().get_node_id()
        assert [worker["node"] for worker in vec.stats()["workers"]] == [head] * 2
        assert (vec.reset(seed=1) == plain.reset(seed=1)).all()
        for _ in range(12):
            assert (vec.step(ACTIONS)[0] == plain.step(ACTIONS)[0]).all()
        for turn in (1, 2):
            added = cluster.add_node(**SMALL)
            assert until_restarted(vec) == mine
            stats = vec.stats()
            assert stats["moves"] == turn
            assert stats["waiting"] == 0
            assert not any(worker["shares"] for worker in stats["workers"])
            assert stats["workers"][guest]["node"] != head
            for _ in range(3):
                obs = vec.step(ACTIONS)[0]
            steps = (obs[:, 1] - 1) * 5 + obs[:, 2]
            assert (steps[mine] == 3).all()
            assert (steps[others] == vec.stats()["steps"]).all(), "the others notice nothing"
            if turn == 1:
                assert sorted(closed.read_text().split()) == [str(at) for at in mine]  # before they were made anew
                cluster.remove_node(added, allow_graceful=False)
                assert until_restarted(vec) == mine
                assert vec.stats()["waiting"] == 1
                assert vec.stats()["workers"][guest]["node"] == head
        assert any("moves to a place of its own" in note for note in notes), notes
        assert any("shares the CPUs of others" in note for note in notes), notes


def elastic_subsets(cluster: Cluster) -> None:
    """Take in a worker while envs are stepped one by one, also where a death is raised. Too few places are an error."""
    options: dict[str, Any] = {"min_workers": 1, "actor_options": {"num_cpus": 1}}
    with RayVecEnv(FNS, 2, **options) as vec:
        assert vec.stats()["waiting"] == 1
        vec.reset()
        vec.send(ACTIONS)
        cluster.add_node(**SMALL)
        moved: set[int] = set()
        end = time.monotonic() + 60.0
        while not moved and time.monotonic() < end:
            batch = vec.recv(1, timeout=20.0)
            moved |= {int(i) for i, info in zip(batch.indices, batch.infos, strict=True) if "worker_restarted" in info}
            vec.send([0] * len(batch), batch.indices)
            time.sleep(0.01)
        assert moved, vec.stats()
        assert vec.stats()["moves"] == 1
    with pytest.raises(
        BackendUnavailable, match=r"no place for [123] of the 3 workers that min_workers asks for within"
    ):
        RayVecEnv(FNS, 4, min_workers=3, ready_timeout=4.0, actor_options={"num_cpus": 1})
    end = time.monotonic() + 20.0
    while (left := actors()) and time.monotonic() < end:
        time.sleep(0.1)
    assert not left


def lose_one(cluster: Cluster, vec: RayVecEnv) -> tuple[list[int], list[int]]:
    """Lose the node of one of two workers; return its envs, and the others."""
    vec.reset(seed=0)
    vec.step(ACTIONS)
    where = [w["transport"] for w in vec.stats()["workers"]].index("messages")
    remove(cluster)
    return ([2, 3], [0, 1]) if where else ([0, 1], [2, 3])


def until_restarted(vec: RayVecEnv) -> list[int]:
    """Step until a worker has been replaced; return its envs."""
    for _ in range(3000):
        _, _, dones, infos = vec.step(ACTIONS)
        back = [i for i, info in enumerate(infos) if info.get("worker_restarted")]
        if back:
            assert dones[back].all()
            return back
        time.sleep(0.01)
    raise AssertionError("nothing noticed")


@contextlib.contextmanager
def noted() -> Iterator[list[str]]:
    """Collect what is logged."""
    notes: list[str] = []
    handler = logging.Handler()
    handler.emit = lambda record: notes.append(record.getMessage())  # type: ignore[method-assign]
    log = logging.getLogger("vecenvs")
    log.addHandler(handler)
    log.setLevel(logging.INFO)
    yield notes
    log.removeHandler(handler)


def step_on(vec: RayVecEnv, seconds: float) -> None:
    """Step until something happens."""
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        vec.step(ACTIONS)
        time.sleep(0.01)


def remove(cluster: Cluster) -> None:
    """Kill the raylet of the first node added after the head, as if its machine were gone."""
    node = sorted(cluster.worker_nodes, key=lambda node: node.raylet_socket_name)
    first: Any = next(n for n in node if n.unique_id == _first_added)
    cluster.remove_node(first, allow_graceful=False)


_first_added = ""


def main(scenario: str) -> None:
    global _first_added  # noqa: PLW0603
    ray_transport.PLACE_TIMEOUT = 5.0
    cluster = Cluster(initialize_head=True, head_node_args={**SMALL, "include_dashboard": False})
    try:
        if not scenario.startswith("elastic"):  # which begins with one node
            _first_added = cluster.add_node(resources={"there": 1}, **SMALL).unique_id
        ray.init(address=cluster.address, logging_level="error")
        globals()[scenario](cluster)
    finally:
        ray.shutdown()
        cluster.shutdown()
    print("done")


if __name__ == "__main__":
    os.environ.setdefault("RAY_AUTH_MODE", "disabled")
    with tempfile.TemporaryDirectory(prefix="ray-") as folder:
        os.environ["RAY_TMPDIR"] = folder  # else every Ray that begins meanwhile on this machine joins this one
        main(sys.argv[1])
