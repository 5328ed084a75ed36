"""The pages that a reader reads, and their Python blocks as one program per page, in the order of the page.

What a reader supplies (a policy, an env function) stands in `SUPPLIED`, before which block; what takes long is made
short by `SHORTER`. Everything else runs as it is written.
"""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parent.parent
PAGES = sorted(
    str(path.relative_to(ROOT))
    for path in [
        *ROOT.glob("*.md"),
        *ROOT.glob("docs/*.md"),
        *ROOT.glob("docs/tutorials/*.md"),
        *ROOT.glob("[a-z]*/README.md"),
    ]
)

_CARTPOLE = "import gymnasium\ndef make_env(*_): return gymnasium.make('CartPole-v1')\n"
SUPPLIED: dict[str, dict[int, str]] = {
    "benchmarks/README.md": {
        0: """
import vecenvs
class Taking:
    def __init__(self, vec): self.vec = vec; vec.reset()
    def step(self, count):
        for _ in range(count): self.vec.step([0] * self.vec.num_envs)
        return count * self.vec.num_envs
    def close(self): self.vec.close()
class MyLibrary:
    name = "mine"
    def make(self, num_envs): return Taking(vecenvs.make_vec_env("CartPole-v1", num_envs=num_envs, force_dummy=True))
"""
    },
    "docs/async.md": {
        1: "def policy(obs): return [0] * len(obs)\n",
        3: _CARTPOLE + "def policy(obs): return int(obs[2] > 0)\n",
    },
    "docs/pfrl.md": {0: _CARTPOLE + "actions = [0] * 8\n"},
    "docs/replay.md": {
        0: "import ray\nray.init(address='local', num_cpus=8, include_dashboard=False)  # one for all blocks\n",
        1: """
demonstrations = batch
replay = Replay(make_vec, Policy, num_explorers=2, capacity=1000, batch_size=16)
replay.sample()
""",
        2: "replay.stop()\nray.shutdown()\n",
    },
    "docs/tutorials/whole_run.md": {
        0: """
import sys, types
class SummaryWriter:  # in the place of TensorBoard's
    def __init__(self, folder): self.values = 0
    def add_scalar(self, name, value, step): self.values += float(value) == value
    def close(self): assert self.values
sys.modules["torch.utils.tensorboard"] = types.SimpleNamespace(SummaryWriter=SummaryWriter)
"""
    },
    "docs/waiting.md": {0: _CARTPOLE + "env_fns, actions = [make_env] * 4, [0] * 4\n"},
    "docs/tuning.md": {
        0: """
from vecenvs import make_vec_env
env = make_vec_env("CartPole-v1", num_envs=32, autoreset="same_step")
env.reset()
actions = [0] * 32
def policy(obs): return [0] * len(obs)
"""
    },
}
SHORTER: dict[str, list[tuple[str, str]]] = {
    "benchmarks/README.md": [("[8, 64]", "[2]"), ("seconds=1.0, repeats=5", "seconds=0.05, repeats=1")],
    "docs/async.md": [("range(10_000)", "range(300)")],
    "docs/recipes.md": [("steps=2000", "steps=200"), ("steps=400", "steps=150")],
    "docs/replay.md": [("range(1000)", "range(20)"), ("num_explorers=4", "num_explorers=2")],
    "docs/sb3.md": [
        ("learn(100_000)", "learn(64)"),
        ("learn(20_000, ", "learn(64, "),
        ("range(10)", "range(1)"),
        ("episodes=20", "episodes=2"),
        ("learn(2_000)", "learn(200)"),
        ("num_envs=8", "num_envs=2"),
        ("seed=1", "seed=1, n_steps=32"),
    ],
    "docs/agents.md": [("as_sb3(vec)).learn(100_000)", "as_sb3(vec), n_steps=16).learn(64)")],
    "docs/tuning.md": [("while True", "for _ in range(20)")],
    "docs/tutorials/async_resets.md": [
        ("rounds=300", "rounds=20"),
        ("rounds=50", "rounds=2"),
        ("batches=200", "batches=20"),
    ],
    "docs/tutorials/hard_env.md": [
        ("with_sb3(8_192)", "with_sb3(256)"),
        ("n_epochs=2", "n_epochs=1"),
        ("iterations=40", "iterations=2, num_steps=40"),
        ("with_simulator(4_096", "with_simulator(256"),
    ],
    "docs/tutorials/whole_run.md": [
        ("40_000, every=10_000", "64, every=64"),
        ("80_000, every=10_000", "128, every=64"),
        ("n_steps=256", "n_steps=16"),
        ("episodes=20", "episodes=2"),
    ],
    "docs/tutorials/ppo_sb3.md": [
        ("learn(30_000)", "learn(512)"),
        ("n_steps=128", "n_steps=32"),
        ("episodes=40", "episodes=4"),
    ],
}

# A process that is the only one of its MPI job needs no memory to share, whose file Open MPI would leave in /dev/shm.
ALONE = {"OMPI_MCA_pml": "ob1", "OMPI_MCA_btl": "self"}


def blocks(page: str) -> list[str]:
    """Return the page's Python blocks."""
    return re.findall(r"^```python\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)


def shown(page: str) -> list[str]:
    """Return the lines that the page says its programs print, without digits: some numbers depend on the machine."""
    texts = re.findall(r"^```text\n(.*?)^```", (ROOT / page).read_text(), re.DOTALL | re.MULTILINE)
    return [without_digits(line) for text in texts for line in text.splitlines()]


def without_digits(line: str) -> str:
    """Return the line with one "0" for each number."""
    return re.sub(r"[ ]*\d+", "0", line)


def check_shown(page: str, output: str) -> None:
    """Check that the output has the lines that the page shows, in this order."""
    lines = iter([without_digits(line) for line in output.splitlines()])
    for expected in shown(page):
        assert expected in lines, f"{page} shows {expected!r}, which is not printed, or not in this order:\n{output}"


def program(page: str) -> str:
    """Join the page's blocks, with what a reader supplies and with less of what takes long."""
    supplied = dict(SUPPLIED.get(page, {}))
    code = "\n".join(supplied.pop(i, "") + block for i, block in enumerate(blocks(page)))
    assert not supplied, f"{page} has no blocks {list(supplied)}"
    for long, short in SHORTER.get(page, []):
        assert long in code, f"{page} no longer has {long!r}"
        code = code.replace(long, short)
    return code


def run(page: str, folder: Path, *, timeout: float = 100.0, **environment: str) -> str:
    """Run the page's blocks in a Python of their own, in this folder; give what they have written."""
    done = subprocess.run(
        [sys.executable, "-c", program(page)],  # no file, which processes that are not forked would import again
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT), **ALONE, **environment},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
        timeout=timeout,
        check=False,
    )
    assert done.returncode == 0, done.stdout
    assert "Traceback" not in done.stdout, done.stdout
    check_shown(page, done.stdout)
    return done.stdout
