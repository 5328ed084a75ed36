"""Files that are damaged, or made to do harm: the error that is promised, which names the file, and no other."""

from __future__ import annotations

import json
import zipfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hostile_files import DEEP, HEADERS, HUGE, LONG, TEXTS, array, as_bytes, mutations, read_or_refuse, rewritten

from vecenvs import DummyVecEnv
from vecenvs.compat import baselines
from vecenvs.testing.envs import CountingEnv, counting_fns
from vecenvs.wrappers import LoadMonitorResultsError, Monitor, VecNormalize, load_results

MONITOR = b'#{"t_start": 1.5, "env_id": "CartPole-v1"}\nr,l,t,won\n1.0,20,0.5,True\n2.0,30,0.75,False\n'


def test_damaged_monitor_files(tmp_path: Path) -> None:
    path = tmp_path / "monitor.csv"
    found = []
    for damaged in mutations(MONITOR, 3000):
        path.write_bytes(damaged)
        found.append(read_or_refuse(lambda: load_results(path), LoadMonitorResultsError, "monitor.csv"))
    assert {True, False} == set(found)


@pytest.mark.parametrize(
    "text",
    [
        ("#" + DEEP + "\nr,l,t\n"),
        ('#{"t_start": ' + HUGE + "}\nr,l,t\n"),
        ('#{"t_start": 1e308}\nr,l,t\n1,2,1e308\n'),
        ('#{"t_start": 1}\nr,l,t\n1,' + HUGE + ",3\n"),
        ('#{"t_start": 1}\nr,l,t\n1,' + LONG + ",3\n"),
        ('#{"t_start": 1}\n' + "x," * 100_000 + "\n"),
        ('#{"t_start": 1}\nr,l,t\n' + "1," * 100_000 + "\n"),
    ],
    ids=range(7),
)
def test_monitor_files_made_to_do_harm(tmp_path: Path, text: str) -> None:
    """Also where a Monitor is to go on with such a file, or `make_vec_env` to look at it."""
    path = tmp_path / "monitor.csv"
    path.write_text(text)
    again = lambda: Monitor(CountingEnv(), path, override_existing=False)  # noqa: E731
    for read in (lambda: load_results(path), again):
        assert not read_or_refuse(read, LoadMonitorResultsError, path.name)


SETTINGS = {
    "norm_obs": [1, "x", None], "norm_reward": [[], "x"], "norm_obs_keys": ["obs", [1], [[]], {}, [""]],
    **{name: ["x", None, True, [1], int(HUGE), -1.0, float("nan"), {}] for name in ("clip_obs", "gamma", "epsilon")},
    "format": [1, None, "vecenvs-replay", []], "version": [0, 3, None, "1", [], True],
}  # fmt: skip


class TestVecNormalize:
    @pytest.fixture
    def path(self, tmp_path: Path) -> Path:
        path = tmp_path / "statistics"
        with VecNormalize(DummyVecEnv(counting_fns(2))) as vec:
            vec.reset()
            vec.save(path)
        return path

    def read(self, path: Path) -> bool:
        with DummyVecEnv(counting_fns(2)) as vec:
            ours = read_or_refuse(lambda: VecNormalize.load(path, vec), ValueError, path.name)
            theirs = read_or_refuse(lambda: baselines.VecNormalize.load(path, vec), ValueError, path.name)
        assert ours == theirs
        return ours

    @pytest.mark.long
    def test_damaged(self, path: Path) -> None:
        content, found = path.read_bytes(), []
        for damaged in mutations(content, 700):
            path.write_bytes(damaged)
            found.append(self.read(path))
        assert {True, False} == set(found)

    @pytest.mark.parametrize("member", ["header", "obs/mean", "obs/var", "obs/count", "returns/mean"])
    @pytest.mark.parametrize("content", [*HEADERS, None], ids=range(len(HEADERS) + 1))
    def test_members_made_to_do_harm(self, path: Path, member: str, content: bytes | None) -> None:
        rewritten(path, **{member: content})
        assert not self.read(path)

    @pytest.mark.parametrize("text", TEXTS, ids=range(len(TEXTS)))
    def test_settings_that_are_no_settings(self, path: Path, text: str) -> None:
        rewritten(path, header=as_bytes(text))
        assert not self.read(path)

    @pytest.mark.parametrize(("name", "value"), [(name, value) for name in SETTINGS for value in SETTINGS[name]])
    def test_settings_of_other_kinds(self, path: Path, name: str, value: Any) -> None:
        with np.load(path) as file:
            header = json.loads(file["header"].tobytes())
        rewritten(path, header=as_bytes(json.dumps({**header, name: value})))
        assert not self.read(path)

    @pytest.mark.parametrize("member", ["obs/var", "obs/count", "returns/var"])
    def test_statistics_that_cannot_be(self, path: Path, member: str) -> None:
        with np.load(path) as file:
            value = file[member]
        rewritten(path, **{member: array(value * 0 - 1.0)})
        assert not self.read(path)

    def test_a_bomb(self, path: Path) -> None:
        """What is compressed may be gigabytes of zeros: it is not unpacked to see what it is."""
        rewritten(path, zipfile.ZIP_DEFLATED)
        assert not self.read(path)
        with DummyVecEnv(counting_fns(2)) as vec, pytest.raises(ValueError, match="it is compressed"):
            VecNormalize.load(path, vec)
