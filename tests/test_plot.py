"""Learning curves: what is computed, and `python -m vecenvs plot`."""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pytest
from later import Later

from vecenvs.__main__ import main
from vecenvs.plots.curves import curve, find_runs, load_seeds, trailing_mean
from vecenvs.wrappers import LoadMonitorResultsError

cv2 = Later("cv2")


def write(path: Path, episodes: Sequence[tuple[float, int, float]], t_start: float = 100.0) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    rows = "".join(f"{r},{length},{t}\n" for r, length, t in episodes)
    path.write_text(f"#{json.dumps({'t_start': t_start, 'env_id': None})}\nr,l,t\n{rows}")


def test_the_trailing_mean() -> None:
    values = np.array([1.0, 3.0, 5.0, 7.0])
    assert trailing_mean(values, 2).tolist() == [1, 2, 4, 6]
    assert trailing_mean(values, 100).tolist() == [1, 2, 3, 4]
    assert trailing_mean(values, 1).tolist() == [1, 3, 5, 7]
    rng = np.random.default_rng(0)
    values = rng.normal(size=50)
    values[[0, 7, 8, 9]] = np.nan
    for window in (1, 3, 10):
        expected = [
            np.nan if np.isnan(part).all() else np.nanmean(part)
            for part in (values[max(0, k + 1 - window) : k + 1] for k in range(50))
        ]
        np.testing.assert_allclose(trailing_mean(values, window), expected)


@pytest.mark.parametrize("odd", [1e20, -np.inf, np.inf])
def test_an_odd_value_is_in_the_means_of_its_windows_alone(odd: float, tmp_path: Path) -> None:
    values = np.array([2.0, odd, 1.0, 1.0, 3.0, 1.0, 1.0])
    assert trailing_mean(values, 1).tolist() == values.tolist()
    assert trailing_mean(values, 2).tolist() == [2, odd / 2, odd / 2, 1, 2, 2, 1]
    assert trailing_mean(values, 3)[4:].tolist() == [5 / 3] * 3
    assert trailing_mean(np.array([np.inf, -np.inf, 1.0, 2.0]), 2)[2:].tolist() == [-np.inf, 1.5]
    write(tmp_path / "monitor.csv", [(r, 10, k) for k, r in enumerate(values)])
    found = curve("a", load_seeds([tmp_path]), window=2)
    assert found.mean.tolist() == found.low.tolist() == found.high.tolist() == trailing_mean(values, 2)[1:].tolist()


def test_one_seed_is_all_its_envs_in_the_order_of_time(tmp_path: Path) -> None:
    write(tmp_path / "0.monitor.csv", [(1, 10, 1.0), (3, 10, 3.0)])
    write(tmp_path / "1.monitor.csv", [(2, 5, 1.0), (4, 5, 3.0)], t_start=101.0)
    seeds = load_seeds([tmp_path])
    found = curve("a", seeds, window=2)
    assert found.x.tolist() == [15, 25, 30]
    assert found.mean.tolist() == [1.5, 2.5, 3.5]
    assert (found.low == found.mean).all()
    assert (found.seeds, found.episodes, found.steps) == (1, 4, 30)
    assert curve("a", seeds, x="episodes", window=1).x.tolist() == [1, 2, 3, 4]
    assert curve("a", seeds, x="time", y="l", window=1).x.tolist() == [1, 2, 3, 4]
    assert curve("a", seeds, y="l", window=1).mean.tolist() == [10, 5, 10, 5]


def test_a_random_policy_does_not_seem_to_learn(tmp_path: Path) -> None:
    """If envs run side by side, short episodes end first, so that a mean over the first few is low."""
    rng = np.random.default_rng(0)
    for env in range(64):
        lengths = rng.geometric(0.02, 40)
        write(tmp_path / f"{env}.monitor.csv", [(n, n, t) for n, t in zip(lengths, np.cumsum(lengths), strict=True)])
    seeds = load_seeds([tmp_path])
    values = seeds[0].r
    found = curve("a", seeds, x="episodes", window=400)
    assert found.x[0] == 400
    assert found.mean[0] == pytest.approx(values[:400].mean())
    assert len(found.x) == len(values) - 399
    everything = curve("a", seeds, x="episodes", window=len(values))
    assert everything.mean.tolist() == pytest.approx([values.mean()])
    with pytest.raises(ValueError, match=f"has {len(values)} finished episodes, .* --smooth {len(values)} takes"):
        curve("a", seeds, window=len(values) + 1)


def test_mean_and_spread_over_seeds(tmp_path: Path) -> None:
    for seed, level in enumerate((2.0, 4.0, 9.0)):
        write(tmp_path / f"{seed}" / "monitor.csv", [(level, 10, t) for t in range(1, 5 + seed)])
    seeds = load_seeds(find_runs([str(tmp_path)])[tmp_path.name])
    levels = np.array([2.0, 4.0, 9.0])
    sem = levels.std(ddof=1) / np.sqrt(3)
    widths = {"std": (levels.std(), levels.std()), "sem": (sem, sem), "range": (3.0, 4.0), "none": (0.0, 0.0)}
    for spread, (below, above) in widths.items():
        found = curve("a", seeds, window=1, spread=spread)
        assert (found.x[0], found.x[-1]) == (10, 40)  # the shortest seed's end
        np.testing.assert_allclose(found.mean, 5.0)
        np.testing.assert_allclose(found.low, 5.0 - below)
        np.testing.assert_allclose(found.high, 5.0 + above)
        assert (found.seeds, found.episodes, found.steps) == (3, 15, 150)


def test_what_the_arguments_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("ppo/1/logs", "ppo/2/logs", "a2c/1/logs", "one"):
        write(tmp_path / name / "0.monitor.csv", [(1, 1, 1.0)])
    monkeypatch.chdir(tmp_path)

    def named(*arguments: str) -> dict[str, list[str]]:
        return {label: [path.as_posix() for path in paths] for label, paths in find_runs(arguments).items()}

    assert named("one") == {"one": ["one"]}
    assert named("ppo", "a2c") == {"ppo": ["ppo/1/logs", "ppo/2/logs"], "a2c": ["a2c/1/logs"]}
    assert named("ppo/1/logs", "a2c/1/logs") == {"ppo/1/logs": ["ppo/1/logs"], "a2c/1/logs": ["a2c/1/logs"]}
    assert named("A=ppo/1", "A=a2c", "A=ppo/1") == {"A": ["ppo/1/logs", "a2c/1/logs"]}
    assert named("one/0.monitor.csv") == {"0.monitor.csv": ["one/0.monitor.csv"]}
    write(tmp_path / "one" / "evaluation" / "0.monitor.csv", [(1, 1, 1.0)])
    assert named("one") == {"one": ["one"]}, "a folder with files is one seed, whatever is below it"
    with pytest.raises(LoadMonitorResultsError, match="none"):
        named("none")
    (tmp_path / "empty").mkdir()
    with pytest.raises(LoadMonitorResultsError, match="below"):
        named("empty")


def test_steps_are_shown_in_thousands(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    write(tmp_path / "0.monitor.csv", [(1.0, 20_000, float(k)) for k in range(9)])
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, _: drawn.append(figure))
    for axis in ("steps", "episodes"):
        assert main(["plot", str(tmp_path), "-x", axis, "--smooth", "9", "-o", str(tmp_path / "curve.png")]) == 0
    labels = [figure.axes[0].xaxis.get_major_formatter()(20_000) for figure in drawn]
    assert labels[0] == "20k"
    assert labels[1] != "20k"


@pytest.mark.sparse
@pytest.mark.parametrize("axis", ["steps", "episodes", "time"])
def test_the_command_draws(tmp_path: Path, capsys: pytest.CaptureFixture[str], axis: str) -> None:
    rng = np.random.default_rng(0)
    for run in ("a", "b"):
        for seed in range(3):
            lengths = rng.integers(5, 50, 60)
            episodes = [(float(n), int(n), float(t)) for n, t in zip(lengths, np.cumsum(lengths), strict=True)]
            write(tmp_path / run / f"{seed}" / "0.monitor.csv", episodes)
    out = tmp_path / "curves.png"
    command = ["plot", str(tmp_path / "a"), f"second={tmp_path / 'b'}", "-x", axis, "--smooth", "10", "-o", str(out)]
    assert main(command) == 0
    image = cv2.imread(str(out))
    assert image.shape == (750, 1200, 3)
    for colour in ((178, 114, 0), (0, 94, 213)):  # both lines, BGR
        assert (image == colour).all(axis=2).sum() > 200
    written = texts(command, tmp_path)
    assert [text for text in written if ":" in text or text == "single episodes"] == [
        "episode return: a, second", "single episodes", "band: one standard deviation over seeds",
    ]  # fmt: skip
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].startswith("a       3 seeds, 180 episodes")
    assert lines[1].startswith("second  3 seeds, 180 episodes")
    assert lines[2] == f"chart: {out}"


def texts(command: list[str], folder: Path) -> list[str]:
    """Return what a chart says. Letters are shapes in an SVG; the text is beside them, as a comment."""
    assert main([*command, "-o", str(folder / "c.svg")]) == 0
    return re.findall("<!-- (.*) -->", (folder / "c.svg").read_text())


def test_episodes_are_shown_behind_their_mean(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    from matplotlib.figure import Figure

    write(tmp_path / "0.monitor.csv", [(float(k % 7), 10, float(k)) for k in range(5001)])
    drawn: list[Figure] = []
    monkeypatch.setattr(Figure, "savefig", lambda figure, _: drawn.append(figure))
    for smooth in ("50", "1"):
        assert main(["plot", str(tmp_path), "--smooth", smooth, "-o", str(tmp_path / "curve.png")]) == 0
    episodes, mean = (line.get_xydata() for line in drawn[0].axes[0].lines)
    assert episodes[:3].tolist() == [[10, 0], [40, 3], [70, 6]], "at most 2000 of them"
    assert len(episodes) == 1667
    assert mean[0].tolist() == [500, pytest.approx(np.mean([k % 7 for k in range(50)]))]
    assert len(drawn[1].axes[0].lines) == 1, "the line has all episodes"


def test_one_episode_and_other_formats(tmp_path: Path) -> None:
    write(tmp_path / "monitor.csv", [(1, 1, 1.0)])
    for ending in ("svg", "pdf"):
        out = ["-o", str(tmp_path / f"c.{ending}")]
        assert main(["plot", str(tmp_path), "-y", "l", "--smooth", "1", *out, "--title", "x"]) == 0
        assert (tmp_path / f"c.{ending}").stat().st_size > 1000


def test_names_are_shown_as_they_are(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Also names with a meaning for matplotlib, which leaves labels with an underscore out of the legend."""
    names, title = ["_hidden", "a_$x$_b", r"$\frac{"], r"$5 to $\frac{10"
    monkeypatch.chdir(tmp_path)
    for name in names:
        write(tmp_path / name / "monitor.csv", [(1, 1, 1.0), (2, 1, 2.0)])
    written = texts(["plot", *names, "--smooth", "2", "--title", title], tmp_path)
    assert [text for text in written if text in (*names, title)] == [title, *names]


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["DIR/none"], "there is no"),
        (["DIR/empty"], "no finished episode"),
        (["DIR/broken"], "header"),
        (["DIR/good", "-y", "x"], "no column 'x': there are r, l, t"),
        (["DIR/good", "-o", "DIR/c.txt"], "must end in"),
        (["DIR/good", "-o", "DIR/none/c.png"], "cannot be written"),
        (["DIR/good", "--smooth", "0"], "at least 1"),
        (["DIR/good", "-x", "days"], "invalid choice"),
        ([], "required"),
    ],
)
def test_bad_input_is_one_line_and_2(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], arguments: list[str], message: str
) -> None:
    write(tmp_path / "good" / "monitor.csv", [(1, 1, 1.0)])
    write(tmp_path / "empty" / "monitor.csv", [])
    (tmp_path / "broken").mkdir()
    (tmp_path / "broken" / "monitor.csv").write_text("what is this\n")
    try:
        code: object = main(["plot", *(argument.replace("DIR", str(tmp_path)) for argument in arguments)])
    except SystemExit as error:
        code = error.code
    assert code == 2
    lines = capsys.readouterr().err.splitlines()
    assert len(lines) == 1
    assert message in lines[0]
