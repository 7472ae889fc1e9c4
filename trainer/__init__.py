"""Credit and GRPO: `from claimwise.trainer import RubricGRPOTrainer, RubricGRPOConfig, token_advantages`; and for TRL's
stock trainer the rewards as plain functions: `answer_reward, format_reward, rubric_reward, prompts_of`."""

from importlib import import_module
from typing import TYPE_CHECKING

from .credit import token_advantages

if TYPE_CHECKING:
    from .config import RubricGRPOConfig
    from .grpo import RubricGRPOTrainer
    from .prompts import prompts_of
    from .rewards import answer_reward, format_reward
    from .rubric_function import rubric_reward

_LATE = {  # what brings torch, TRL or datasets: only when asked for
    "RubricGRPOTrainer": "grpo",
    "RubricGRPOConfig": "config",
    "prompts_of": "prompts",
    "answer_reward": "rewards",
    "format_reward": "rewards",
    "rubric_reward": "rubric_function",
}
__all__ = ["RubricGRPOConfig", "RubricGRPOTrainer", "answer_reward", "format_reward", "prompts_of", "rubric_reward"]
__all__ += ["token_advantages"]


def __getattr__(name: str):
    if name not in _LATE:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f".{_LATE[name]}", __name__), name)
