"""Failures of processes, as opposed to envs, and of what is needed to start them. See also the conformance suite."""

from __future__ import annotations

import functools
import os
import signal
import threading
import time
from collections.abc import Callable
from multiprocessing import resource_tracker
from pathlib import Path
from typing import Any

import psutil
import pytest
from conftest import Configuration

from vecenvs import DummyVecEnv
from vecenvs.backends import BACKENDS, backend_class
from vecenvs.backends.subproc import ProcessTransport, SubprocVecEnv
from vecenvs.errors import EnvError, StepTimeout, VecEnvError, WorkerDied
from vecenvs.pool.commands import Commands
from vecenvs.testing.envs import CountingEnv, DyingEnv, FailingEnv, GatedEnv, counting_fns
from vecenvs.testing.leaks import wait_until_empty
from vecenvs.testing.suite.deaths import PROMPT
from vecenvs.vec_env import VecEnv

matrix = "workers"
HERE = os.getpid()


class Lost:
    """An env function that pickles, but cannot be loaded anywhere else: its module is the caller's alone."""

    def __call__(self) -> CountingEnv:
        return CountingEnv()

    def __reduce__(self) -> tuple[Any, ...]:
        return load_at, (HERE,)


def load_at(pid: int) -> Lost:
    if os.getpid() != pid:
        raise ModuleNotFoundError("No module named 'only_in_the_notebook'")
    return Lost()


class NoSpaces(CountingEnv):
    """Forgets to say what its observations are."""

    def __init__(self) -> None:
        super().__init__()
        del self.observation_space


class OldBox:
    """As the old gym package has them."""

    shape = (3,)


class OldGymPackageEnv(CountingEnv):
    """Its interface is Gymnasium's, its spaces are not."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space: Any = OldBox()


class HeldSpace(CountingEnv):
    """Its observation space cannot be pickled."""

    def __init__(self) -> None:
        super().__init__()
        self.observation_space.lock = threading.Lock()


class EnvironmentEnv(CountingEnv):
    """Tells what its process was started with."""

    def variables(self, *names: str) -> list[str | None]:
        return [os.environ.get(name) for name in names]


class ParentEnv(CountingEnv):
    """Has a process of its own, as envs of games and simulators do."""

    def __init__(self) -> None:
        super().__init__()
        import multiprocessing

        self.child = multiprocessing.get_context("fork").Process(target=signal.pause)
        self.child.start()

    def close(self) -> None:
        self.child.kill()
        self.child.join()


@pytest.fixture
def worker_pids(no_leaks: None) -> Callable[[], list[int]]:
    """Answers with the processes started since the test began, in order of their start."""
    resource_tracker.ensure_running()  # none of them, whichever test comes first
    before = {process.pid for process in psutil.Process().children(recursive=True)}

    def pids() -> list[int]:
        found = [process for process in psutil.Process().children(recursive=True) if process.pid not in before]
        found = [process for process in found if "descendants.py" not in " ".join(process.cmdline())]  # the guardian
        return [process.pid for process in sorted(found, key=lambda process: (process.create_time(), process.pid))]

    return pids


@pytest.mark.parametrize("start_method", ["spawn", "forkserver"])
def test_env_functions_that_do_not_pickle(start_method: str) -> None:
    lock = threading.Lock()
    fns = [*counting_fns(2), lambda: lock and CountingEnv()]
    with pytest.raises((VecEnvError, TypeError), match=r"env 2\b.*pickle"):
        SubprocVecEnv(fns, 2, start_method)


def test_fork_needs_no_pickling() -> None:
    lock = threading.Lock()
    with SubprocVecEnv([lambda: lock and CountingEnv(3)] * 2, 2, "fork") as vec:
        assert vec.get_attr("tag") == [3, 3]


def test_env_functions_that_share_an_env() -> None:
    env = CountingEnv()
    with pytest.raises(
        EnvError, match="env 1 gave an env that another .*: it must return a new gymnasium.Env each time"
    ):
        SubprocVecEnv([lambda: env] * 2, 1, "fork")


def test_env_functions_that_do_not_load() -> None:
    """Told as what it is, not as a death without a reason."""
    with pytest.raises(EnvError, match="only_in_the_notebook") as caught:
        SubprocVecEnv([CountingEnv, CountingEnv, CountingEnv, Lost()], 2, "spawn")
    assert caught.value.index == 3


def test_an_env_without_spaces(configuration: Configuration) -> None:
    with pytest.raises(EnvError, match=r"env 1\b.*observation_space") as caught:
        configuration.make_vec([CountingEnv, NoSpaces, CountingEnv])
    assert caught.value.index == 1


def test_an_env_of_the_old_gym_package(configuration: Configuration) -> None:
    """Its spaces are none of Gymnasium's: the batches would be of objects."""
    with pytest.raises(EnvError, match=r"env 1\b.*observation_space is a .*OldBox, .*shimmy's GymV26") as caught:
        configuration.make_vec([CountingEnv, OldGymPackageEnv, CountingEnv])
    assert caught.value.index == 1


def seeded_as_once() -> CountingEnv:
    env = CountingEnv()
    env.seed(3)  # type: ignore[attr-defined]
    return env


def test_an_env_function_that_seeds_as_once(configuration: Configuration) -> None:
    """As baselines' make_env does."""
    with pytest.raises(EnvError, match=r"env 0 .*'seed'.* leave env.seed out, and give the seed to the VecEnv"):
        configuration.make_vec([seeded_as_once] * 2)


def test_spaces_that_do_not_pickle(configuration: Configuration) -> None:
    with pytest.raises(VecEnvError, match=r"env 0\b.*observation_space.*pickle"):
        configuration.make_vec([HeldSpace] * 4)


@pytest.mark.parametrize(
    ("kwargs", "message"),
    [
        ({"num_workers": 0}, "num_workers=0"),
        ({"num_workers": 5}, "num_workers=5.*4 envs"),
        ({"num_workers": 1.5}, "num_workers.*1.5"),
        ({"num_workers": True}, "num_workers.*True"),
        ({"num_workers": "3"}, "num_workers must be an int, not '3'"),
        ({"max_restarts": "a"}, "max_restarts must be an int, not 'a'"),
        ({"max_restarts": 2.5}, "max_restarts must be an int, not 2.5"),
        ({"max_restarts": True}, "max_restarts must be an int, not True"),
        ({"start_method": "teleport"}, "start_method.*teleport.*fork"),
        ({"max_restarts": -1, "on_failure": "restart"}, "max_restarts"),
        ({"step_timeout": 0}, "step_timeout"),
        ({"autoreset": "never"}, "autoreset.*disabled"),
    ],
)
def test_wrong_arguments(kwargs: dict[str, Any], message: str) -> None:
    with pytest.raises((ValueError, TypeError), match=message):
        SubprocVecEnv(counting_fns(4), **kwargs).close()


def test_a_method_seed_that_no_env_has() -> None:
    """Code written for Gym asks for it."""
    with (
        DummyVecEnv(counting_fns(2)) as vec,
        pytest.raises(
            EnvError,
            match=r"CountingEnv has no method 'seed', like all envs of Gymnasium: .* seed\(\.\.\.\).*reset\(seed=",
        ),
    ):
        vec.env_method("seed", 3)


def test_unknown_backend() -> None:
    with pytest.raises(ValueError, match="teleport.*dummy.*subproc"):
        backend_class("teleport")
    assert {"dummy", "subproc"} <= BACKENDS.keys()


@PROMPT
@pytest.mark.parametrize(
    "command",
    [lambda vec: vec.step([0] * 4), lambda vec: vec.reset(options={"much": bytes(300_000)})],
    ids=["short", "long"],
)
def test_a_kill_from_outside_between_steps(
    command: Callable[[VecEnv], Any], worker_pids: Callable[[], list[int]]
) -> None:
    """Noticed whatever it is asked next: also by a message that is too long to be sent before some of it is read."""
    with SubprocVecEnv(counting_fns(4), 2, "fork") as vec:
        vec.reset()
        vec.step([0] * 4)
        victim = psutil.Process(worker_pids()[1])
        victim.kill()
        assert not wait_until_empty(lambda: victim.status().replace(psutil.STATUS_ZOMBIE, ""), patience=20.0)
        with pytest.raises(WorkerDied) as caught:
            command(vec)
        assert caught.value.indices == (2, 3)
        assert caught.value.worker == 1
        assert caught.value.signal == signal.SIGKILL


@PROMPT
@pytest.mark.parametrize("victim", [0, 1])
def test_a_kill_from_outside_while_waiting(victim: int, tmp_path: Path, worker_pids: Callable[[], list[int]]) -> None:
    """The caller is asleep in step_wait, and both workers are at a step that does not end before."""
    gate = tmp_path / "gate"
    fns = [functools.partial(GatedEnv, tag, gate) for tag in range(4)]
    with SubprocVecEnv(fns, 2, "fork") as vec:
        vec.reset()
        pid = worker_pids()[victim]
        vec.step_async([0] * 4)
        timer = threading.Timer(0.5, os.kill, (pid, signal.SIGKILL))
        timer.start()
        with pytest.raises(WorkerDied) as caught:
            vec.step_wait()
        timer.join()
        gate.touch()
        assert caught.value.worker == victim


@PROMPT
def test_an_async_reset_that_raises_what_is_no_exception() -> None:
    """Nobody waits for ever, though it happens in a thread."""
    fns = [functools.partial(FailingEnv, 0, "reset", 2, "interrupt", 1), functools.partial(CountingEnv, 1, 99)]
    with SubprocVecEnv(fns, 1, "fork", autoreset="async") as vec:
        vec.reset()
        vec.step([0, 0])

        def go_on() -> None:
            vec.reset([0])
            vec.step([0, 0])  # the worker may have answered the reset before it ended

        with pytest.raises((EnvError, WorkerDied)):
            go_on()


@PROMPT
def test_a_stopped_worker(worker_pids: Callable[[], list[int]]) -> None:
    """Out of time, but nothing is lost."""
    with SubprocVecEnv(counting_fns(4), 2, "fork") as vec:
        vec.reset()
        pid = worker_pids()[0]
        os.kill(pid, signal.SIGSTOP)
        vec.step_async([0] * 4)
        with pytest.raises(StepTimeout) as caught:
            vec.step_wait(timeout=1.0)
        assert set(caught.value.indices) == {0, 1}
        os.kill(pid, signal.SIGCONT)
        assert vec.step_wait()[0][:, 2].tolist() == [1] * 4


@pytest.mark.sparse
@PROMPT
@pytest.mark.parametrize("start_method", ["fork", "spawn"])
def test_a_replacement_killed_while_it_opens_the_memory(
    start_method: str, worker_pids: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one takes its place."""
    send, killed = ProcessTransport.boot_send, []

    def kill_and_send(transport: ProcessTransport, wiring: Any) -> None:
        if len(killed) < 2:
            killed.append(transport._process.pid)
            os.kill(killed[-1], signal.SIGKILL)
        send(transport, wiring)

    with SubprocVecEnv(counting_fns(4), 2, start_method, on_failure="restart", max_restarts=3) as vec:
        vec.reset()
        monkeypatch.setattr(ProcessTransport, "boot_send", kill_and_send)
        os.kill(worker_pids()[0], signal.SIGKILL)
        assert vec.step([0] * 4)[3][0]["worker_restarted"] is True
        assert vec.stats()["restarts"] == 3
        assert len(killed) == 2


@PROMPT
def test_a_replacement_that_dies_before_it_gets_the_step(
    worker_pids: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Sending it what is unanswered fails then, as it does where a Ray actor finds a better place."""
    sent = Commands.send_again
    broken: list[int] = []

    def send_again(self: Commands, worker: int, transport: Any) -> None:
        if not broken:
            broken.append(worker)
            os.kill(transport._process.pid, signal.SIGKILL)
            raise BrokenPipeError
        sent(self, worker, transport)

    with SubprocVecEnv(counting_fns(2), 2, on_failure="restart") as vec:
        vec.reset()
        monkeypatch.setattr(Commands, "send_again", send_again)
        os.kill(worker_pids()[0], signal.SIGKILL)
        rows = [vec.step([0, 0]) for _ in range(3)]
        assert broken
        assert sum(infos[broken[0]].get("worker_restarted", False) for *_, infos in rows) == 1
        assert vec.stats()["restarts"] == 2


def test_close_with_a_stopped_worker(worker_pids: Callable[[], list[int]], monkeypatch: pytest.MonkeyPatch) -> None:
    """SIGTERM waits in a stopped process; SIGKILL does not."""
    monkeypatch.setattr("vecenvs.pool.pool_base.CLOSE_GRACE", 1.0)  # rather than 5 s
    vec = SubprocVecEnv(counting_fns(4), 2, "fork")
    vec.reset()
    os.kill(worker_pids()[0], signal.SIGSTOP)
    vec.close()


@pytest.mark.parametrize("start_method", ["fork", pytest.param("spawn", marks=pytest.mark.long)])
def test_launcher_variables_do_not_reach_workers(start_method: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """An env that imports mpi4py would else take its process for a rank of the job."""
    names = [
        "OMPI_COMM_WORLD_RANK",
        "PMIX_RANK",
        "PMI_RANK",
        "PRTE_MCA_x",
        "HYDI_CONTROL_FD",
        "HYDRA_x",
        "MPI_LOCALRANKID",
    ]
    for name in names:
        monkeypatch.setenv(name, "7")
    monkeypatch.setenv("VECENVS_UNRELATED", "8")
    with SubprocVecEnv([EnvironmentEnv] * 2, 2, start_method) as vec:
        assert vec.env_method("variables", *names, "VECENVS_UNRELATED") == [[None] * len(names) + ["8"]] * 2
    assert [os.environ[name] for name in names] == ["7"] * len(names)


def test_envs_may_have_processes_of_their_own(configuration: Configuration) -> None:
    with configuration.make_vec([ParentEnv] * 4) as vec:
        vec.reset()
        vec.step([0] * 4)


@PROMPT
def test_a_fork_of_the_caller_leaves_the_workers_alone() -> None:
    """A copy of the VecEnv in a forked process, closed there, does not end the original's workers."""
    with SubprocVecEnv(counting_fns(4), 2, "fork") as vec:
        vec.reset()
        child = os.fork()
        if child == 0:
            vec.close()
            os._exit(0)
        assert os.waitpid(child, 0)[1] == 0
        assert vec.step([0] * 4)[0][:, 2].tolist() == [1] * 4


def test_ctrl_c_within_an_env_of_the_caller() -> None:
    """A KeyboardInterrupt is not the env's own: it comes out as it is, and the VecEnv can be closed or reset."""
    fns = [functools.partial(FailingEnv, tag, "step" if tag == 1 else "never", 2, "interrupt") for tag in range(3)]
    for backend in ("dummy", "subproc"):
        kwargs = {} if backend == "dummy" else {"num_workers": 2, "start_method": "fork", "caller_steps": True}
        order = fns if backend == "dummy" else [*fns[::2], fns[1]]
        with backend_class(backend)(order, **kwargs) as vec:
            vec.reset()
            vec.step([0] * 3)
            with pytest.raises(KeyboardInterrupt):
                vec.step([0] * 3)


@PROMPT
def test_a_death_in_a_step_of_some_envs(tmp_path: Path) -> None:
    """The step has ended with it: attributes can be read, and `arecv` waits where others can run."""
    never = tmp_path / "never"
    fns = [functools.partial(GatedReset, never), functools.partial(DyingEnv, 1, "step", 3)]
    with SubprocVecEnv(fns, 2, "fork", autoreset="async", info_attrs=["t"]) as vec:
        vec.reset()
        vec.step([0, 0])
        assert vec.step([0, 0])[2].tolist() == [True, False]
        with pytest.raises(WorkerDied):
            vec.step([0, 0])
        never.touch()
        assert vec.recv().indices.tolist() == [0]
        assert vec.info_array("t")[0] == 0


class GatedReset(CountingEnv):
    """Its episodes have two steps; its second reset waits for the file."""

    def __init__(self, file: Path) -> None:
        super().__init__(0, 2)
        self.file = file

    def reset(self, **kwargs: Any) -> Any:
        while self.episode and not self.file.exists():
            time.sleep(0.01)
        return super().reset(**kwargs)
