"""A guest's manners: whose Ray it is, what is asked of it, what is left of it."""

from __future__ import annotations

import functools
import os
import re
import signal
import socket
import subprocess
import sys
import time
import uuid
from contextlib import closing
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from later import Later
from ray_session import ENVIRONMENT, OPTIONS, ROOT, kill, no_leaks, ray_session, run_script  # noqa: F401

from vecenvs.backends import backend_class
from vecenvs.backends.ray import RayVecEnv, actor_end
from vecenvs.backends.ray.actor import ActorLocation, EnvActor
from vecenvs.backends.ray.cluster import shorten
from vecenvs.backends.ray.placement import NoPlace, Placement, Request
from vecenvs.compat.ray_multiprocess_env import RayVectorEnv
from vecenvs.errors import BackendUnavailable, VecEnvError, WorkerDied
from vecenvs.testing import leaks
from vecenvs.testing.envs import CountingEnv, counting_fns
from vecenvs.transport import leaders, tcp
from vecenvs.transport.memory import Address
from vecenvs.transport.node_link import NodeLink
from vecenvs.transport.shared import Names
from vecenvs.transport.spinning import ALONE, NEVER, SHARED
from vecenvs.transport.tcp import Listener

ray = Later("ray")
groups, strategies = Later("ray.util.placement_group"), Later("ray.util.scheduling_strategies")
HOST = """
import functools, os, ray
from vecenvs.backends.ray import RayVecEnv
from vecenvs.testing.envs import CountingEnv
def make(**kwargs):
    fns = [functools.partial(CountingEnv, i, **kwargs) for i in range(2)]
    return RayVecEnv(fns, 2, ray_init_kwargs={"object_store_memory": 80 * 2**20})
"""


@pytest.mark.long
def test_it_stops_what_it_started() -> None:
    """With the last of two VecEnvs; and starts anew. More workers than cores are no obstacle."""
    run_script(
        HOST
        + """
a = make()
b = make()
a.reset(); a.close()
assert ray.is_initialized()
assert b.reset()[:, 0].tolist() == [0, 1]
b.close()
assert not ray.is_initialized()
with make() as c:
    c.reset()
    ray.shutdown()  # by its user, too early
    try:
        c.step([0, 0])
    except RuntimeError as error:
        assert type(error).__name__ == "WorkerDied", error
        assert "closed" in str(error), error
    else:
        raise SystemExit("no error")
assert not ray.is_initialized(), "close() must not start another one"
"""
    )


@pytest.mark.long
@pytest.mark.parametrize("how", ["os.kill(pid, 9)", "ray.kill(vec._workers.transports[0]._actor)"])
def test_what_envs_have_started_ends_with_a_killed_actor(how: str) -> None:
    """Also in sessions of their own, and what these have started. Ray itself ends children at most, and not always."""
    run_script(
        HOST
        + f"""
import subprocess, time
from pathlib import Path
from vecenvs.testing import leaks
mark = {uuid.uuid4().hex!r}
class Simulated(CountingEnv):
    def __init__(self):
        super().__init__()
        environ = dict(os.environ, SIMULATOR=mark)
        subprocess.Popen(["sh", "-c", "sleep 300 & sleep 300"], start_new_session=True, env=environ)
        subprocess.Popen(["sleep", "300"], env=environ)
def pid_of(env):
    return os.getpid()
with RayVecEnv([Simulated] * 2, 1, ray_init_kwargs=dict(object_store_memory=80 * 2**20)) as vec:
    vec.reset()
    (pid,) = vec.call(pid_of, [0])
    while len(leaks.processes_with("SIMULATOR", mark)) < 6:
        time.sleep(0.01)
    {how}
    assert not leaks.wait_until_empty(lambda: leaks.processes_with("SIMULATOR", mark), 30.0)
"""
    )


def test_a_cut_link_is_a_death_though_ray_says_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    """Ray finds out after a minute. Replacements do not go to that node meanwhile."""
    now = 100.0
    monkeypatch.setattr("vecenvs.transport.remote.time", SimpleNamespace(monotonic=lambda: now))
    monkeypatch.setattr(actor_end, "last_words_of", lambda *_: "")
    monkeypatch.setattr(actor_end, "has_ended", lambda *_: False)
    end = object.__new__(actor_end.ActorEnd)
    vars(end).update(
        _session=SimpleNamespace(alive=lambda: True), _member=SimpleNamespace(link=SimpleNamespace(closed=True)),
        _serving=None, _exit=None, _process=None, _last_words="", _disconnected=0.0,
        location=ActorLocation("far", "10.0.0.7", 7, 1), _actors=SimpleNamespace(lost_nodes=set()),
    )  # fmt: skip
    assert end.exit_status() == (False, None)
    now += actor_end.WORD_TIMEOUT - 0.1
    assert end.exit_status() == (False, None)
    now += 0.2
    assert end.exit_status() == (True, None)
    assert end._actors.lost_nodes == {"far"}
    assert end.where == " on node far (10.0.0.7) [its node does not answer]"


def test_the_wait_for_an_address_is_short() -> None:
    """With what importing Ray takes, an address that nobody answers is an error within ten seconds."""
    from vecenvs.backends.ray import cluster

    assert cluster.KNOCKING <= 5.0


@pytest.mark.long
def test_nobody_at_the_address() -> None:
    """Said soon, where Ray itself goes on trying for minutes."""
    text = """
import os, pytest
from vecenvs.backends.ray import cluster as ray_cluster
from vecenvs.backends.ray import RayVecEnv
from vecenvs.errors import BackendUnavailable
from vecenvs.testing.envs import CountingEnv
ray_cluster.KNOCKING = 0.2
with pytest.raises(BackendUnavailable, match="join the Ray at 127.0.0.1:1 .nothing listens.*RAY_ADDRESS.*[?]$"):
    RayVecEnv([CountingEnv], ray_init_kwargs={"address": "127.0.0.1:1"})
os.environ["RAY_ADDRESS"] = "127.0.0.1:1"
with pytest.raises(BackendUnavailable, match="nothing listens"):
    RayVecEnv([CountingEnv])
print("all said")
"""
    assert "all said" in run_script(text)


@pytest.mark.long
def test_what_its_user_has_shut_down_does_not_count_any_more() -> None:
    """Neither is the user's next Ray taken for its own, nor its own next one ended under a VecEnv that uses it."""
    run_script(
        HOST
        + """
a = make(); a.reset()
ray.shutdown()
b = make(); c = make()
a.close(); b.close()
assert c.reset()[:, 0].tolist() == [0, 1]
assert c.step([0, 0])[0][:, 2].tolist() == [1, 1]
ray.shutdown()
c.close()
ray.init(address="local", num_cpus=2, include_dashboard=False, logging_level="error")
d = make(); d.reset(); d.close()
assert ray.is_initialized()
"""
    )


@pytest.mark.long
def test_a_program_that_ends_without_closing(tmp_path: Path) -> None:
    """Its envs are closed all the same, before Ray ends their actors."""
    run_script(
        HOST + f"from pathlib import Path; vec = make(closed_file=Path({str(tmp_path / 'closed')!r})); vec.reset()"
    )
    assert sorted((tmp_path / "closed").read_text().split()) == ["0", "1"]


@pytest.mark.long
def test_a_killed_caller_leaves_nothing() -> None:
    """Neither processes (found by a token in their environment) nor names of semaphores (`no_leaks` looks)."""
    token = uuid.uuid4().hex
    script = HOST + "vec = make(); vec.reset(); print('up', flush=True); vec.step_async([0, 0]); input()"

    process = subprocess.Popen(
        [sys.executable, "-c", script],
        env={**os.environ, **ENVIRONMENT, "VECENVS_TOKEN": token},
        cwd=ROOT,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    assert process.stdout is not None
    assert process.stdin is not None
    while "up" not in (line := process.stdout.readline()):
        assert line, "it ended"
    process.send_signal(signal.SIGKILL)
    process.wait()
    process.stdin.close()
    process.stdout.close()
    left = leaks.wait_until_empty(lambda: leaks.processes_with("VECENVS_TOKEN", token), 20.0)
    assert not left


@pytest.mark.usefixtures("ray_session")
class TestGuest:
    """On a Ray that runs."""

    @pytest.mark.long
    def test_it_is_left_running(self) -> None:
        with RayVecEnv(counting_fns(2), 1, actor_options=OPTIONS) as vec:
            vec.reset()
        assert ray.is_initialized()

    @pytest.mark.long
    def test_another_process_joins_and_leaves(self) -> None:
        """By RAY_ADDRESS; the actors it had are gone with it, the cluster is not."""
        address = ray.get_runtime_context().gcs_address
        run_script(
            "import ray\nfrom vecenvs.backends.ray import RayVecEnv\nfrom vecenvs.testing.envs import CountingEnv\n"
            "with RayVecEnv([CountingEnv] * 2, 1, actor_options={'num_cpus': 0.1}) as vec:\n"
            f"    assert ray.get_runtime_context().gcs_address == {address!r}\n"
            "    assert vec.reset().shape == (2, 3)\n"
            "assert not ray.is_initialized()\n",
            RAY_ADDRESS=address,
        )
        assert ray.get(ray.put(1)) == 1

    @pytest.mark.parametrize("options", [{"num_gpus": 1}, {"resources": {"moon": 2}}, {"num_cpus": 64}])
    def test_what_the_cluster_does_not_have(self, options: dict[str, Any]) -> None:
        with pytest.raises(BackendUnavailable, match="can never be") as caught:
            RayVecEnv(counting_fns(2), 1, actor_options=options, ready_timeout=0.5)
        assert "envs 0, 1" in str(caught.value)
        assert "ready_timeout" in str(caught.value)

    @pytest.mark.long
    def test_what_others_hold(self) -> None:
        with RayVecEnv(counting_fns(2), 2), pytest.raises(BackendUnavailable, match="0 CPU is free now"):
            RayVecEnv(counting_fns(2), 1, ready_timeout=1.0)

    def test_what_else_they_may_wait_for(self) -> None:
        """Labels, a placement group, a node: said, and not explained by CPUs."""
        group = groups.placement_group([{"CPU": 0.1}])
        ray.get(group.ready())
        groups.remove_placement_group(group)
        for options, placement, words in (
            ({"label_selector": {"kind": "moon"}}, None, r"free, so it waits for label_selector=\{'kind': 'moon'\}"),
            ({}, group, "its placement group of 0.1 CPU has no place itself .Ray says REMOVED"),
            ({"num_cpus": 64}, "local", "to which placement ties it, has 2 CPU, so it can never be"),
            ({}, strategies.NodeAffinitySchedulingStrategy("00" * 28, soft=False), "no living node is 0000"),
        ):
            with pytest.raises(BackendUnavailable, match=words):
                RayVecEnv(counting_fns(2), 1, actor_options={**OPTIONS, **options}, placement=placement,
                          ready_timeout=0.5)  # fmt: skip

    @pytest.mark.long
    def test_a_runtime_env_that_cannot_be_set_up(self) -> None:
        """Told as that, as soon as Ray says so, and until then as what may be."""
        options = {**OPTIONS, "runtime_env": {"conda": "no-such-env"}}
        with pytest.raises(BackendUnavailable, match="cannot set up the runtime_env of the worker of envs 0, 1 .*con"):
            RayVecEnv(counting_fns(2), 1, actor_options=options)
        options["runtime_env"] = {"py_executable": "/no/such/python"}
        with pytest.raises(BackendUnavailable, match=r"waits for runtime_env=.*runtime_env_setup-\*.log on the node"):
            RayVecEnv(counting_fns(2), 1, actor_options=options, ready_timeout=0.5)

    def test_workers_by_default(self) -> None:
        with RayVecEnv(counting_fns(5)) as vec:
            assert len(vec.stats()["workers"]) == 2, "the Ray of these tests has two CPUs"
            pids = {worker["pid"] for worker in vec.stats()["workers"]}
            assert len(pids) == 2

    @pytest.mark.long
    def test_placement(self) -> None:
        node = ray.get_runtime_context().get_node_id()
        for placement in ("local", "spread", strategies.NodeAffinitySchedulingStrategy(node, soft=False)):
            with RayVecEnv(counting_fns(2), 1, actor_options=OPTIONS, placement=placement) as vec:
                assert vec.stats()["workers"][0]["node"] == node

    @pytest.mark.long
    def test_workers_try_before_they_sleep_where_cores_are_spare(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """As SubprocVecEnv's: nobody with more workers than cores, the caller only with a core of its own."""
        with RayVecEnv(counting_fns(2), 2, actor_options=OPTIONS) as vec:
            transport: Any = vec._workers.transports[0]
            for cores, expected in ((3, (ALONE, ALONE)), (2, (NEVER, SHARED)), (1, (NEVER, NEVER))):
                monkeypatch.setattr("vecenvs.backends.ray.actors.usable_cores", lambda cores=cores: cores)
                assert transport.spins() == expected

    @pytest.mark.long
    def test_memory_that_cannot_be_opened(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Then messages carry the rows, and stats() says why."""
        from vecenvs.transport.memory import Segment

        made = Segment.__init__

        def elsewhere(self: Segment, size: int) -> None:
            made(self, size)
            self.address = Address("/proc/1/fd/987654", size)

        monkeypatch.setattr(Segment, "__init__", elsewhere)
        with RayVecEnv(counting_fns(2), 1, actor_options=OPTIONS) as vec:
            assert vec.reset()[:, 0].tolist() == [0, 1]
            (worker,) = vec.stats()["workers"]
            assert worker["transport"] == "messages"
            assert "FileNotFoundError" in worker["why"]

    @pytest.mark.long
    def test_a_node_whose_leader_has_no_memory(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Each worker connects by itself, and stats() says why: here no semaphore can have the leader's names."""
        options = {"actor_options": OPTIONS, "transport": "messages"}
        with monkeypatch.context() as patch:
            patch.setattr(leaders, "new_name", lambda: "/" + 300 * "x")
            with RayVecEnv(counting_fns(2), 2, **options) as vec:
                assert vec.reset()[:, 0].tolist() == [0, 1]
                for worker in vec.stats()["workers"]:
                    assert not worker["gathered"]
                    assert re.match(r"asked for, and no leader on node \w+ .*OSError: .*semaphore", worker["why"])
        opened = NodeLink.open

        def one_without(link: NodeLink, shard: range, names: Names, spin: Any) -> Any:
            if shard.start == 0:
                names = names._replace(up="/" + 300 * "x")
            worker, spec = opened(link, shard, names, spin)
            return worker, spec._replace(batch=Address("/proc/1/fd/987654", 1)) if shard.start == 1 else spec

        monkeypatch.setattr(NodeLink, "open", one_without)
        with RayVecEnv(counting_fns(3), 3, **options) as vec:
            assert vec.reset()[:, 0].tolist() == [0, 1, 2]
            assert vec.step([0, 0, 0])[0][:, 2].tolist() == [1, 1, 1]
            first, second, third = vec.stats()["workers"]
            assert [each["gathered"] for each in (first, second, third)] == [False, False, True]
            assert "its node's leader has no memory for it: OSError" in first["why"]
            assert "cannot open the memory of its node's leader: FileNotFoundError" in second["why"]

    @pytest.mark.long
    def test_nodes_that_cannot_connect(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """The error names the host, the port and what chooses them."""
        made = Listener.__init__

        def walled_in(self: Listener, host: str, port: int = 0) -> None:
            made(self, host, port)
            self.close()

        monkeypatch.setattr(Listener, "__init__", walled_in)
        with pytest.raises(
            VecEnvError,
            match=r"the worker on node \w+ \([\d.]+\) cannot connect to this process at [\d.]+, port \d+ "
            r"\(ConnectionRefusedError.*\(asked for\). Open the TCP ports of [\d.]+ .*port=.*--node-ip-address",
        ):
            RayVecEnv(counting_fns(2), 1, actor_options=OPTIONS, transport="messages")

    @pytest.mark.long
    def test_a_port_of_the_users_choice(self) -> None:
        """One after another the actors connect to it, and so does the one of another VecEnv."""
        with closing(socket.create_server(("", 0))) as listener:
            port = listener.getsockname()[1]
        with RayVecEnv(counting_fns(2), 2, actor_options=OPTIONS, transport="messages", port=port) as vec:
            assert vec.reset()[:, 0].tolist() == [0, 1]
            with RayVecEnv(counting_fns(2), 1, actor_options=OPTIONS, transport="messages", port=port) as other:
                assert other.reset()[:, 0].tolist() == [0, 1]
            with closing(socket.create_server(("", port))), pytest.raises(VecEnvError, match=f"port {port} .*in use"):
                RayVecEnv(counting_fns(2), 1, actor_options=OPTIONS, transport="messages", port=port)

    @pytest.mark.long
    def test_an_address_at_which_nothing_can_listen(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(ray.util, "get_node_ip_address", lambda: "192.0.2.254")
        with pytest.raises(VecEnvError, match=r"cannot connect to this process at 192.0.2.254, port 0 \(OSError"):
            RayVecEnv(counting_fns(2), 1, actor_options=OPTIONS, transport="messages")

    @pytest.mark.long
    def test_a_connection_without_the_key(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """It takes no part, here one with another key."""
        monkeypatch.setattr(tcp, "CONNECT_TIMEOUT", 0.5)
        accept = Listener.accept

        def of_another(self: Listener) -> socket.socket:
            self.invitation = self.invitation._replace(key=b"k" * 32)
            return accept(self)

        monkeypatch.setattr(Listener, "accept", of_another)
        with pytest.raises(VecEnvError, match="TimeoutError: no worker has connected"):
            RayVecEnv(counting_fns(2), 1, actor_options=OPTIONS, transport="messages")

    @pytest.mark.long
    @pytest.mark.parametrize("transport", ["auto", "messages"])
    def test_restarts_keep_no_descriptors(self, transport: str) -> None:
        with RayVecEnv(
            counting_fns(2), 1, actor_options=OPTIONS, transport=transport, on_failure="restart", max_restarts=9
        ) as vec:
            vec.reset()
            counts = []
            for restarts in range(1, 7):
                os.kill(vec.stats()["workers"][0]["pid"], signal.SIGKILL)
                while vec.stats()["restarts"] < restarts:
                    vec.step([0, 0])
                vec.step([0, 0])
                counts.append(len(os.listdir("/proc/self/fd")))
            assert counts[-1] - counts[0] < 5, counts  # Ray's own come and go

    @pytest.mark.long
    def test_closing_waits_for_no_exit_code(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Of actors that have been told to close, and whose processes go on: there would be none for that long."""
        monkeypatch.setattr("vecenvs.backends.ray.actor_end.EXIT_CODE_TIMEOUT", 100.0)
        with RayVecEnv(counting_fns(2), 2, actor_options=OPTIONS) as vec:
            vec.reset()

    @pytest.mark.long
    def test_a_replacement_without_a_place_of_its_own(self) -> None:
        """It goes to the given node if any would do, and needs no CPU; whatever else it needs it has to find."""
        node = ray.get_runtime_context().get_node_id()
        for options, placement, bound_for in (
            ({"num_cpus": 2}, "spread", node),
            ({"num_cpus": 2}, strategies.NodeAffinitySchedulingStrategy(node, soft=False), node),
            ({"num_cpus": 2, "resources": {"sim": 1}}, None, None),
            ({"num_cpus": 1, "num_gpus": 1}, "local", None),
            ({"num_cpus": 1, "label_selector": {"kind": "moon"}}, None, None),
        ):
            asked = Request(options, placement, node, 9.0, "actor_options")
            shared = asked.without_cpus(node)
            assert shared.bound_for == bound_for
            assert shared._options == {**options, "num_cpus": 0}
            assert not asked.needs_nothing
            assert shared.queue is not asked.queue, "its place is no sign that others will find one of their own"
            assert shared.queue is asked.without_cpus(node).queue

    @pytest.mark.long
    def test_who_waits_for_a_place_is_patient_while_others_find_theirs(self, monkeypatch: pytest.MonkeyPatch) -> None:
        """Many processes on few cores start one after the other."""
        node = ray.get_runtime_context().get_node_id()
        clock = SimpleNamespace(monotonic=lambda: now)
        monkeypatch.setattr("vecenvs.backends.ray.placement.time", clock)
        request = Request({"num_cpus": 1}, None, node, 10.0, "actor_options")
        now = 0.0
        waiting = ray.remote(EnvActor).options(resources={"moon": 1}).remote(0, "async")
        last = Placement(request, waiting, "the last worker")
        now = 9.0
        assert last.location(0) is None
        found = SimpleNamespace(location=SimpleNamespace(remote=lambda: ray.put(ActorLocation(node, "", 0, 1))))
        Placement(request, found, "another worker")
        for now in (11.0, 20.0):  # noqa: B007  the clock reads it
            assert last.location(0) is None
        now = 22.0
        Placement(request, found, "one that is given up").give_up()
        with pytest.raises(NoPlace, match="no place for the last worker within 10 s"):
            last.location(0)
        ray.kill(waiting)

    @pytest.mark.parametrize("name", ["max_restarts", "max_task_retries", "lifetime", "name"])
    def test_options_that_are_not_for_the_user(self, name: str) -> None:
        with pytest.raises(ValueError, match=name):
            RayVecEnv(counting_fns(2), 1, actor_options={name: 1})

    @pytest.mark.long
    @pytest.mark.parametrize("transport", ["auto", "messages"])
    def test_large_rows_are_the_readers_own(self, transport: str) -> None:
        """More than what Ray sends inline: it then hands out read-only views of its object store."""
        with RayVecEnv(
            [functools.partial(Large, i) for i in range(2)], 1, transport=transport, actor_options=OPTIONS
        ) as vec:
            obs = vec.reset()
            obs += 1
            actions = np.full((2, 60_000), 3.0, np.float32)
            obs, _, _, infos = vec.step(actions)
            assert obs[1].tolist()[:2] == [7.0, 7.0]
            infos[0]["array"][:] = 0
            assert actions.max() == 3.0

    @pytest.mark.long
    @pytest.mark.parametrize("transport", ["auto", "messages"])
    def test_a_shard_whose_actor_is_killed_by_ray(self, transport: str) -> None:
        """The error says where it was, and what Ray says of its end."""
        vec = RayVecEnv(counting_fns(2), 2, actor_options=OPTIONS, transport=transport)
        vec.reset()
        kill(vec._workers.transports[1]._actor)

        def step_on() -> None:
            for _ in range(2000):  # Ray calls an actor dead shortly before its process is
                vec.step([0, 0])
                time.sleep(0.005)

        with pytest.raises(WorkerDied, match=r"node \w+ \([\d.]+\) \[.*ray\.kill.*\] with envs 1 died") as caught:
            step_on()
        assert caught.value.indices == (1,)
        vec.close()


class Large(CountingEnv):
    """Rows and actions of 240 kB; it writes to the action it is given."""

    def __init__(self, tag: int) -> None:
        from gymnasium import spaces

        super().__init__(tag)
        self.observation_space = self.action_space = spaces.Box(-1e9, 1e9, (60_000,), np.float32)

    def reset(self, **kwargs: Any) -> Any:
        _, info = super().reset(**kwargs)
        return np.zeros(60_000, np.float32), info

    def step(self, action: Any) -> Any:
        _, *rest = super().step(0)
        action += 4
        rest[-1] = {"array": np.ones(50_000)}
        return (action, *rest)


SAID = "The actor died unexpectedly before finishing this task.\n\tclass_name: EnvActor\n\tpid: 7\n"


@pytest.mark.parametrize(
    ("words", "short"),
    [
        (
            f"{SAID}The actor is dead because it was killed by `ray.kill`.",
            "is dead because it was killed by `ray.kill`",
        ),
        (f"{SAID}The actor is dead because its worker process has died. Worker exit type: X", "Worker exit type: X"),
        (f"{SAID}The actor died because its node has died. Node Id: 8", "because its node has died. Node Id: 8"),
        ("the connection is gone\nfor good", "the connection is gone"),
        ("", ""),
    ],
)
def test_what_ray_says_of_an_end(words: str, short: str) -> None:
    """Of its lines the one that has the reason."""
    assert short in shorten(words)
    assert "unexpectedly" not in shorten(words)


def test_ray_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "ray", None)
    with pytest.raises(BackendUnavailable, match=r"pip install ray"):
        backend_class("ray")(counting_fns(2), 1)
    with pytest.raises(ImportError, match="pip install"):
        RayVectorEnv([])


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"autorest": "async"}, "RayVecEnv has no argument 'autorest' .did you mean 'autoreset'"),
        ({"autoreset": "never"}, "autoreset 'never' is none of"),
        ({"step_timeout": "2"}, "step_timeout must be seconds or None, not '2'"),
        ({"max_restarts": 1.5}, "max_restarts must be an int, not 1.5"),
        ({"info_attrs": "tag"}, "info_attrs must be a tuple of attribute names, not 'tag'"),
        ({"num_workers": "2"}, "num_workers must be an int, not '2'"),
        ({"num_workers": 3}, "num_workers=3 for 2 envs"),
        ({"ready_timeout": "a"}, "ready_timeout must be seconds or None, not 'a'"),
        ({"transport": "pigeon"}, "transport 'pigeon' is none of"),
        ({"placement": "moon"}, "placement 'moon' is neither"),
        ({"on_lost_node": "stay"}, "on_lost_node 'stay' is none of move, wait"),
        ({"min_workers": 0, "num_workers": 2}, "min_workers must be at least 1, not 0"),
        ({"min_workers": "1", "num_workers": 2}, "min_workers must be an int, not '1'"),
        ({"min_workers": 3, "num_workers": 2}, "min_workers=3 of num_workers=2: it can be at most as many"),
        ({"min_workers": 1}, "min_workers=1 needs num_workers="),
        ({"placement": 5}, "placement: .*scheduling_strategy"),
        (
            {"actor_options": "num_cpus"},
            "actor_options must be a mapping of options of Ray's actors, or None, not 'num_",
        ),
        ({"actor_options": {"max_restarts": 1}}, "actor_options must not have max_restarts"),
        ({"actor_options": {"cpus": 1}}, "actor_options: Invalid option keyword cpus"),
        ({"actor_options": {"num_cpus": "a"}}, "actor_options: .*num_cpus"),
        ({"ray_init_kwargs": [1]}, "ray_init_kwargs must be a mapping of arguments of ray.init, or None, not .1."),
    ],
)
def test_wrong_arguments(wrong: dict[str, Any], message: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """Are found before a Ray is started, or one that runs is joined."""

    def begin(*_: Any) -> None:
        raise AssertionError("it begins all the same")

    monkeypatch.setattr("vecenvs.backends.ray.ray_vec_env.Session.__init__", begin)
    with pytest.raises((TypeError, ValueError), match=message):
        RayVecEnv(counting_fns(2), **wrong)


def test_importing_vecenvs_does_not_import_ray() -> None:
    run_script(
        "import sys, vecenvs, vecenvs.backends.ray, vecenvs.compat.ray_env_wrapper; assert 'ray' not in sys.modules"
    )
