"""Server and explorers in Ray: batches, rate limits, failures and the end."""

from __future__ import annotations

import collections
import functools
import os
import signal
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from later import Later
from numbered import ACTION, OBS, numbers, transitions
from ray_session import no_leaks, ray_session, run_script  # noqa: F401

from vecenvs import DummyVecEnv, SubprocVecEnv
from vecenvs.errors import BackendUnavailable, ClosedError, VecEnvError
from vecenvs.replay import ExplorerDied, ExplorerError, Replay, ReplayBuffer, ReplayServer, SampleTimeout, ServerDied
from vecenvs.testing.envs import CountingEnv, FailingEnv, counting_fns
from vecenvs.testing.envs.failing import ToyError

SMALL = {"num_cpus": 0.1}
ray = Later("ray")


class Ones:
    """A policy that returns action 1 and stores weights."""

    def __init__(self, n: int) -> None:
        self.n, self.epsilon, self.weights = n, 0.5, None

    def act(self, obs: Any) -> Any:
        return np.ones(self.n, np.int64)

    def set_weights(self, weights: Any) -> None:
        self.weights = weights


def make_vec(explorer: int) -> DummyVecEnv:
    return DummyVecEnv(counting_fns(2))


def make_policy(vec: Any, explorer: int) -> Ones:
    return Ones(vec.num_envs)


def start(make: Callable[[int], Any] = make_vec, num_explorers: int = 1, **kwargs: Any) -> Replay:
    arguments = {"capacity": 500, "batch_size": 16, "explorer_options": SMALL, "server_options": SMALL, **kwargs}
    return Replay(make, make_policy, num_explorers, **arguments)


def serve(**kwargs: Any) -> ReplayServer:
    arguments = {"capacity": 100, "batch_size": 10, "server_options": SMALL, **kwargs}
    return ReplayServer(OBS, ACTION, **arguments)


def wait_until(holds: Callable[[], Any], seconds: float = 20.0) -> Any:
    end = time.monotonic() + seconds
    while not (found := holds()):
        assert time.monotonic() < end, "it did not come about"
        time.sleep(0.02)
    return found


def sample_on(source: Any, times: int = 2000) -> None:
    """Sample as a learner would, a hundred times a second."""
    for _ in range(times):
        source.sample()
        time.sleep(0.01)


@pytest.mark.usefixtures("ray_session")
class TestServer:
    """Tests of the server without explorers."""

    def test_batches(self) -> None:
        """All stored rows are drawn, batches belong to the caller, errors are clear."""
        with serve(seed=0, prefetch=4) as server:
            with pytest.raises(SampleTimeout, match="no batch of 10 within 0.1 s"):
                server.sample(timeout=0.1)
            for begin in range(0, 150, 50):
                server.insert(transitions(begin, begin + 50))
            wait_until(lambda: server.stats()["inserted"] == 150)  # `insert` has returned before they are stored
            batches = [server.sample() for _ in range(250)]
            # The two calls of the time before, of four batches each, drew from what was there then. Ray may return the
            # answer to a later call first.
            drawn = [set(numbers(batch)) for batch in batches]
            assert all(each <= set(range(150)) for each in drawn)
            late = [each for each in drawn if each <= set(range(50, 150))]
            assert len(late) >= len(drawn) - 8
            assert set().union(*late) == set(range(50, 150))
            batches[0]["obs"][:] = -1
            assert all(batch["obs"].min() >= 0 for batch in batches[1:])
            with pytest.raises(ValueError, match=r"obs has shape \(4, 3\)"):
                server.insert({**transitions(0, 4), "obs": np.zeros((4, 3), np.float32)})
            with pytest.raises(ValueError, match="prioritized=True"):
                server.update_priorities([1], [1.0])
            stats = server.stats()
            assert (stats["stored"], stats["transport"], stats["why"]) == (100, "shared", "")
            assert server.get_attr("buffer.inserted") == 150
            server.set_attr("ignored_priorities", 5)
            assert server.call(lambda owner, more: owner.ignored_priorities + more, 2) == 7
            with pytest.raises(AttributeError, match="moon"):
                server.set_attr("moon", 1)
            with pytest.raises(
                TypeError, match=r"the result is a ReplayBuffer, which cannot .*get_attr\('name.part'\)"
            ):
                server.get_attr("buffer")
            with pytest.raises(TypeError, match=r"the result is a ReplayBuffer.*a function that returns numbers"):
                server.call(lambda owner: owner.buffer)
        with pytest.raises(ClosedError, match="sample"):
            server.sample()
        server.stop()

    @pytest.mark.long
    def test_a_batch_larger_than_stored(self) -> None:
        """It is waited for, also where `min_size` is less."""
        with serve(min_size=4) as server:
            server.insert(transitions(0, 5))
            with pytest.raises(SampleTimeout):
                server.sample(timeout=0.3)
            server.insert(transitions(5, 10))
            assert len(server.sample()["reward"]) == 10

    @pytest.mark.long
    def test_priorities_checkpoint_and_inserters(self, tmp_path: Path) -> None:
        """Inserters can be pickled; a checkpoint of another layout is refused."""
        with serve(prioritized=True, alpha=1.0, prefetch=1, batch_size=40) as server:
            inserter = ray.cloudpickle.loads(ray.cloudpickle.dumps(server.inserter(3)))  # as another actor gets it
            for begin in range(0, 40, 10):
                fragment = transitions(begin, begin + 10)
                del fragment["explorer"]
                inserter.add(fragment)
            inserter.flush()
            batch = server.sample()
            assert set(batch["explorer"].tolist()) == {3}
            assert batch["indexes"].tolist() == batch["reward"].astype(int).tolist()
            server.update_priorities(np.arange(40), [0.0] * 39 + [1000.0])
            wait_until(lambda: set(server.sample()["indexes"].tolist()) == {39})
            server.save(tmp_path / "saved.npz")
        with serve(prioritized=True, alpha=1.0, restore=tmp_path / "saved.npz") as server:
            assert set(server.sample()["indexes"].tolist()) == {39}
            assert server.stats()["inserted"] == 40
        with pytest.raises(ValueError, match="another layout: its n_step is 1, here it is 2"):
            serve(n_step=2, restore=tmp_path / "saved.npz")

    def test_a_checkpoint_that_is_refused(self, tmp_path: Path) -> None:
        """The stored transitions are unchanged."""
        np.savez(tmp_path / "saved.npz", x=np.zeros(3))
        with serve() as server:
            server.insert(transitions(20, 30))
            with pytest.raises(ValueError, match=r"saved.npz' is not a saved replay buffer: it has no header"):
                server.restore(tmp_path / "saved.npz")
            assert set(numbers(server.sample())) <= set(range(20, 30))

    @pytest.mark.long
    def test_who_is_faster_waits(self) -> None:
        """With two samples per insert and a tolerance of 20, neither side exceeds the limit, and both continue."""
        with serve(samples_per_insert=2.0, min_size=10, prefetch=2) as server:
            inserter = server.inserter()
            sent = 0
            while sent < 100 and inserter.has_room(0.3):
                inserter.add(transitions(sent, sent + 5))
                sent += 5
            stats = server.stats()
            assert sent < 100, "inserting must wait"
            assert 20 < (stats["inserted"] - 10) * 2 - stats["sampled"] <= 30
            assert stats["waiting_inserts"] == 2
            server.insert(transitions(sent, sent + 5))  # from the process that would have to sample first
            sent += 5
            taken = 10 * (((sent - 10) * 2 + 20) // 10)
            for _ in range(taken // 10):
                server.sample(timeout=20.0)
            with pytest.raises(SampleTimeout):
                server.sample(timeout=0.3)
            inserter.flush()
            stats = server.stats()
            assert (stats["inserted"], stats["sampled"]) == (sent, taken)

    @pytest.mark.long
    def test_memory_that_cannot_be_opened(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Messages carry the blocks then, and stats() has the reason."""
        from vecenvs.transport.memory import Address, Segment

        made = Segment.__init__

        def elsewhere(self: Segment, size: int) -> None:
            made(self, size)
            self.address = Address("/proc/1/fd/987654", size)

        monkeypatch.setattr(Segment, "__init__", elsewhere)
        with serve(samples_per_insert=100.0, prefetch=3) as server:
            server.insert(transitions(0, 10))
            assert set(numbers(server.sample())) <= set(range(10))
            assert server.stats()["transport"] == "messages"
            assert "FileNotFoundError" in server.stats()["why"]
            assert server.stats()["sampled"] == 30, "the limit"

    @pytest.mark.long
    def test_what_was_drawn_before_a_restore(self, tmp_path: Path) -> None:
        """It is discarded, and does not count."""
        buffer = ReplayBuffer(OBS, ACTION, 50)
        buffer.add(transitions(20, 40))
        buffer.save(tmp_path / "saved.npz")
        with serve(samples_per_insert=1.0, prefetch=1) as server:
            server.insert(transitions(0, 10))
            assert set(numbers(server.sample())) <= set(range(10))
            server.insert(transitions(10, 20))
            wait_until(lambda: server.stats()["sampled"] == 20)  # one batch that is drawn ahead
            server.restore(tmp_path / "saved.npz")
            assert set(numbers(server.sample(timeout=20.0))) <= set(range(20, 40))
            assert server.stats()["sampled"] == 20, "10 as if the ratio had been kept, and those of this batch"

    @pytest.mark.long
    def test_the_later_request_is_answered_first(self) -> None:
        """Ray's async actors may begin calls in another order: a request that got all that is allowed is taken."""

        class LastFirst(collections.deque[Any]):
            append = collections.deque.appendleft

        with serve(samples_per_insert=100.0, prefetch=3) as server:
            server.call(lambda owner: setattr(owner, "_requests", LastFirst()))
            with pytest.raises(SampleTimeout):
                server.sample(timeout=0.5)
            wait_until(lambda: server.stats()["waiting_samples"] == 2)
            server.insert(transitions(0, 10))
            assert len(server.sample(timeout=20.0)["reward"]) == 10

    def test_its_death(self) -> None:
        with serve() as server:
            server.insert(transitions(0, 10))
            os.kill(server.call(lambda owner: os.getpid()), signal.SIGKILL)
            with pytest.raises(ServerDied, match="restore="):
                sample_on(server)
            with pytest.raises(ServerDied):
                server.stats()

    def test_wrong_arguments(self) -> None:
        for arguments, words in (
            ({"capacity": 5}, "capacity=5 is less than min_size=1 or batch_size=10"),
            ({"samples_per_insert": 0.0}, "samples_per_insert must be more than 0"),
            ({"prefetch": 0}, "prefetch must be"),
            ({"batch_size": 0}, "batch_size must be at least 1"),
            ({"alpha": -1.0}, "alpha must be"),
            ({"server_options": {"name": "x"}}, "name"),
        ):
            with pytest.raises(ValueError, match=words):
                serve(**arguments)
        with pytest.raises(BackendUnavailable, match=r"no place for the replay server.*to which placement ties it"):
            serve(server_options={"num_cpus": 64}, ready_timeout=0.3)


@pytest.mark.usefixtures("ray_session")
class TestExplorers:
    """Tests of server and explorers together."""

    @pytest.mark.parametrize(("wrong", "error"), [("soon", TypeError), (-1.0, ValueError), (float("nan"), ValueError)])
    def test_ready_timeouts_that_are_wrong(self, wrong: Any, error: type[Exception]) -> None:
        for make in (start, serve):
            with pytest.raises(error, match="ready_timeout must be seconds"):
                make(ready_timeout=wrong)

    def test_arguments_that_are_wrong(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Wrong arguments raise before a Ray is started or joined."""
        for module in ("replay", "server"):
            monkeypatch.delattr(f"vecenvs.replay.{module}.Session")
        with pytest.raises(TypeError, match="Replay has no argument 'prioritised' .did you mean 'prioritized'"):
            start(prioritised=True)
        for make, name in ((start, "explorer_options"), (serve, "server_options")):
            with pytest.raises(ValueError, match=f"{name}: Invalid option keyword cpus"):
                make(**{name: {"cpus": 1}})
            with pytest.raises(TypeError, match="ray_init_kwargs must be a mapping"):
                make(ray_init_kwargs=5)

    @pytest.mark.long
    def test_without_a_ready_timeout(self) -> None:
        for unlimited in (None, float("inf")):
            with serve(ready_timeout=unlimited) as server:
                assert server.stats()["inserted"] == 0

    @pytest.mark.long
    def test_from_envs_to_learner(self, tmp_path: Path) -> None:
        """Check transitions of both explorers, versions of weights, attributes, a death and the end."""
        replay = start(num_explorers=2, seed=3, n_step=2)
        assert replay.publish({"w": np.arange(3)}) == 1
        seen: set[int] = set()
        while seen != {0, 1}:
            batch = replay.sample()
            m = batch["next_obs"][:, 2] - batch["obs"][:, 2]
            assert ((m == 2) | (m == 1) & batch["terminated"]).all()
            np.testing.assert_allclose(batch["discount"], 0.99**m, rtol=1e-5)
            seen |= set(batch["explorer"].tolist())
        wait_until(lambda: [e.get("version") for e in replay.stats()["explorers"]] == [1, 1])
        assert replay.explorers.get_attr("policy.weights")[1]["w"].tolist() == [0, 1, 2]
        replay.explorers.set_attr("policy.epsilon", 0.1, indices=[1])
        assert replay.explorers.get_attr("policy.epsilon") == [0.5, 0.1]
        assert replay.explorers.call(lambda e, name: e.vec.get_attr(name), "tag", indices=0) == [[0, 1]]
        with pytest.raises(AttributeError, match="moon"):
            replay.explorers.get_attr("policy.moon")
        stats = replay.stats()
        assert stats["explorers"][0]["mean_length"] == 5.0
        assert stats["stored"] <= stats["capacity"] == 500
        os.kill(stats["explorers"][0]["pid"], signal.SIGKILL)
        wait_until(lambda: replay.stats()["explorers"][0].get("transitions") and replay.stats()["replaced"])
        wait_until(lambda: (batch := replay.sample())["episode"][batch["explorer"] == 0].max(initial=0) >= 2**32)
        assert [e["replaced"] for e in replay.stats()["explorers"]] == [1, 0]
        replay.stop()
        replay.stop()
        asking = functools.partial(replay.explorers.get_attr, "steps")
        for call in (replay.sample, replay.stats, functools.partial(replay.publish, 1), asking):
            with pytest.raises(ClosedError):
                call()

    @pytest.mark.long
    def test_processes_inside(self) -> None:
        """A SubprocVecEnv in an actor ends with the actor, which the leak check verifies."""
        with start(lambda _: SubprocVecEnv(counting_fns(2), 2, start_method="forkserver")) as replay:
            assert set(replay.sample()["obs"][:, 0].tolist()) <= {0, 1}

    @pytest.mark.long
    def test_an_error_reaches_the_learner(self) -> None:
        """The error has index, traceback and cause; the other explorers continue."""

        def make(explorer: int) -> DummyVecEnv:
            return DummyVecEnv([lambda: FailingEnv(7, at=40) if explorer == 1 else CountingEnv(7)])

        with start(make, 2) as replay:
            with pytest.raises(ExplorerError, match="explorer 1 raised EnvError") as caught:
                sample_on(replay)
            assert caught.value.index == 1
            assert "ToyError: env 7 failed in step" in str(caught.value)
            assert caught.value.__cause__ is not None
            inserted = replay.stats()["inserted"]
            wait_until(lambda: replay.stats()["inserted"] > inserted)

    @pytest.mark.long
    def test_when_none_is_left(self) -> None:
        """The last error is raised again, in place of an endless wait."""
        with start(lambda _: DummyVecEnv([lambda: FailingEnv(7, at=3)])) as replay:
            for _ in range(2):
                with pytest.raises(ExplorerError, match="failed in step"):
                    replay.sample()

    @pytest.mark.long
    def test_what_fails_at_the_start(self) -> None:
        with pytest.raises(ExplorerError, match="raised ToyError in make_vec") as caught:
            start(_fail)
        assert isinstance(caught.value.__cause__, ToyError)
        with pytest.raises(ExplorerError, match="make_vec returned a CountingEnv: it must return a VecEnv"):
            start(lambda _: CountingEnv())
        lock = threading.Lock()
        with pytest.raises(VecEnvError, match="make_vec or make_policy cannot be pickled.*lock"):
            start(lambda _: lock)
        with pytest.raises(ExplorerError, match="explorer 1 has observation_space"):
            start(_other_spaces, 2)
        with pytest.raises(ExplorerDied, match="explorer 0 died"):
            start(lambda _: os._exit(3))

    @pytest.mark.long
    def test_a_replacement_without_a_place(self) -> None:
        """If another actor takes the CPUs of a dead explorer, the learner gets the error."""
        options = {"explorer_options": {"num_cpus": 2}, "server_options": {"num_cpus": 0}}
        with start(ready_timeout=20.0, samples_per_insert=1.0, **options) as replay:
            heir = ray.remote(num_cpus=2)(CountingEnv).remote()
            replay.sample()
            os.kill(replay.explorers.call(lambda _: os.getpid())[0], signal.SIGKILL)
            with pytest.raises(BackendUnavailable, match="no place for explorer 0 within 20 s.* 0 CPU is free now"):
                sample_on(replay)
            ray.kill(heir)

    @pytest.mark.long
    def test_a_call_that_exits(self) -> None:
        """It is an error of the call. The actors continue."""
        with start() as replay:
            for ask in (replay.explorers.call, replay.call):
                with pytest.raises(RuntimeError, match=r"SystemExit\(3\)"):
                    ask(lambda _: sys.exit(3))
            assert replay.explorers.get_attr("vec.num_envs") == [2]
            replay.sample()
            assert replay.stats()["replaced"] == 0

    @pytest.mark.long
    def test_too_many_deaths(self) -> None:
        with start(max_restarts=0) as replay:
            os.kill(replay.explorers.call(lambda _: os.getpid())[0], signal.SIGKILL)
            with pytest.raises(ExplorerDied, match="max_restarts=0"):
                sample_on(replay)

    @pytest.mark.long
    def test_a_stuck_learner_does_not_fill_the_memory(self) -> None:
        """With a ratio explorers pause when the learner does, and still answer calls."""
        with start(samples_per_insert=1.0, fragment_size=20) as replay:
            replay.sample()
            wait_until(lambda: replay.stats()["waiting_inserts"] == 2)
            before = replay.stats()
            assert replay.explorers.get_attr("vec.num_envs") == [2]
            time.sleep(0.3)
            assert replay.stats()["inserted"] == before["inserted"]
            for _ in range(200):
                replay.sample()
            assert replay.stats()["inserted"] > before["inserted"]


def _fail(_: int) -> Any:
    raise ToyError("no")


def _other_spaces(explorer: int) -> DummyVecEnv:
    from vecenvs.testing.envs import SampledEnv

    return DummyVecEnv([CountingEnv if explorer == 0 else functools.partial(SampledEnv, OBS)])


def test_libraries_that_are_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ray", "cpprb"):
        with monkeypatch.context() as patch:
            patch.setitem(sys.modules, name, None)
            with pytest.raises(BackendUnavailable, match=f"pip install {name}"):
                start()
            with pytest.raises(BackendUnavailable):
                serve()


@pytest.mark.long
def test_importing_brings_neither_ray_nor_cpprb() -> None:
    run_script("import sys, vecenvs.replay; assert not {'ray', 'cpprb', 'torch'} & set(sys.modules)")


@pytest.mark.long
def test_a_program_that_does_not_stop_it() -> None:
    """It ends with its own Ray and leaves nothing; a Replay that is garbage-collected warns and stops."""
    text = """
import gc, os, warnings, numpy as np, psutil, ray
from vecenvs import DummyVecEnv
from vecenvs.replay import Replay, ReplayServer
from vecenvs.testing.envs import counting_fns
class Ones:
    def act(self, obs):
        return np.ones(2, np.int64)
vec = DummyVecEnv(counting_fns(2))
server = ReplayServer(vec.observation_space, vec.action_space, 100, ray_init_kwargs={"object_store_memory": 80 * 2**20},
                      batch_size=1)
vec.close()
replay = Replay(lambda i: DummyVecEnv(counting_fns(2)), lambda vec, i: Ones(), 1, 500, batch_size=16)
server.insert(replay.sample())
pids = replay.explorers.call(lambda _: os.getpid()) + [replay.call(lambda _: os.getpid())]
with warnings.catch_warnings(record=True) as caught:
    warnings.simplefilter("always")
    del replay
    gc.collect()
assert any("Replay was not closed" in str(w.message) for w in caught), caught
assert not any(psutil.pid_exists(pid) for pid in pids)
assert ray.is_initialized()
assert len(server.sample()["reward"]) == 1
print("left open")
"""
    assert "left open" in run_script(text)


@pytest.mark.long
def test_ray_that_its_user_has_shut_down() -> None:
    """Later calls raise and start no other Ray; stop() works, also beside another Ray."""
    text = """
import sys, pytest, ray
sys.path.insert(0, "tests/replay")
from numbered import transitions
from test_replay_ray import serve, start
from vecenvs.replay import ServerDied
small = dict(address="local", num_cpus=2, include_dashboard=False, object_store_memory=80 * 2**20)
ray.init(**small, logging_level="error")
replay, server = start(), serve(prioritized=True, batch_size=1, prefetch=1)
server.insert(transitions(0, 10))
inserter = server.inserter()
inserter.add(transitions(0, 10))
replay.sample(), server.sample()
ray.shutdown()
for again in (False, True):
    if again:
        server.stop()
        ray.init(**small, logging_level="error")
    of_replay = [
        replay.stats, lambda: replay.publish(1), lambda: [replay.sample() for _ in range(500)],
        lambda: replay.explorers.get_attr("steps"), lambda: replay.save("/dev/null"),
    ]
    of_server = [
        lambda: [server.sample() for _ in range(9)], inserter.flush,
        lambda: server.insert(transitions(0, 10)), lambda: inserter.add(transitions(0, 10)),
        lambda: server.update_priorities([1], [1.0]),
    ]
    for ask in of_replay if again else of_replay + of_server:
        with pytest.raises(ServerDied, match="connection to Ray has been closed"):
            ask()
        assert ray.is_initialized() == again
replay.stop()
assert ray.is_initialized()
ray.shutdown()
print("all said")
"""
    assert "all said" in run_script(text)
