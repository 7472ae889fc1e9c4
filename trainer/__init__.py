"""Credit and GRPO: `from claimwise.trainer import RubricGRPOTrainer, RubricGRPOConfig, token_advantages`."""

from .credit import token_advantages

__all__ = ["RubricGRPOConfig", "RubricGRPOTrainer", "token_advantages"]


def __getattr__(name: str):
    if name == "RubricGRPOTrainer":  # brings torch and TRL: only when asked for
        from .grpo import RubricGRPOTrainer

        return RubricGRPOTrainer
    if name == "RubricGRPOConfig":
        from .config import RubricGRPOConfig

        return RubricGRPOConfig
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
