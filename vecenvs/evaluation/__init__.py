"""`evaluate`: whole episodes of a policy, each with a seed of its own, whichever env plays it."""

from __future__ import annotations

from vecenvs.evaluation.evaluation import Evaluation, evaluate

__all__ = ["Evaluation", "evaluate"]
