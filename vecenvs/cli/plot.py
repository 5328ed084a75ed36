"""Draw learning curves from monitor files.

DIR is a directory of monitor files, which are of one training run with one seed: all of its envs together. A directory
without monitor files stands for all directories below it that have some. These are the seeds of one run, whose mean and
spread are drawn. LABEL=DIR names a line, and arguments with the same label are seeds of one run:

    plot logs/cartpole
    plot logs/ppo logs/a2c -x time                    two lines; each directory below them is a seed
    plot PPO=logs/run1 PPO=logs/run2 A2C=logs/run3
"""

from __future__ import annotations

import argparse
from pathlib import Path

from vecenvs.cli import UsageError
from vecenvs.cli._arguments import PICTURES, count, output_ending_in

_X = ("steps", "episodes", "time")
_SPREADS = ("std", "sem", "range", "none")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Declare the command line."""
    parser.add_argument("runs", metavar="DIR", nargs="+", help="directory or file, or LABEL=DIR")
    parser.add_argument("-x", choices=_X, default="steps", help="default: steps")
    parser.add_argument("-y", metavar="COLUMN", default="r", help="r (return, default), l (length) or any other column")
    parser.add_argument("--smooth", metavar="K", type=count, default=100, help="mean over K episodes (default: 100)")
    parser.add_argument("--spread", choices=_SPREADS, default="std", help="of several seeds (default: std)")
    parser.add_argument("--title", metavar="TEXT", help="above the chart (default: what it shows)")
    parser.add_argument(
        "-o",
        "--out",
        metavar="FILE",
        type=output_ending_in(*PICTURES),
        default=Path("learning-curves.png"),
        help="%(default)s",
    )


def run(args: argparse.Namespace) -> int:
    """Draw the chart, then print what it shows and where it is."""
    from vecenvs.plots import curve_chart, curves
    from vecenvs.wrappers.results import LoadMonitorResultsError

    try:
        runs = curves.find_runs(args.runs)
        made = [
            curves.curve(label, curves.load_seeds(paths), x=args.x, y=args.y, window=args.smooth, spread=args.spread)
            for label, paths in runs.items()
        ]
        curve_chart.draw(made, args.out, x=args.x, y=args.y, window=args.smooth, spread=args.spread, title=args.title)
    except (LoadMonitorResultsError, ValueError, ImportError, OSError) as error:
        raise UsageError(" ".join(str(error).split())) from None
    width = max(len(curve.label) for curve in made)
    for curve in made:
        seeds = f"{curve.seeds} seed{'s' * (curve.seeds > 1)}"
        print(
            f"{curve.label:<{width}}  {seeds}, {curve.episodes} episodes, {curve.steps} steps; "
            f"{args.y} at the end {curve.mean[-1]:.4g}"
        )
    print(f"chart: {args.out}")
    return 0
