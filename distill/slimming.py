"""A slimmer model from a trained one: fewer and narrower layers with fewer heads, which a judge in the loop pays for in
every step.

In: a tiny Qwen3-VL, which of its layers and heads stay, and batches of its tasks. Out: a model that starts as what they
leave of it, and the loss under which it becomes as good. Its residual stream is the wide one's, projected on the
directions in which most of it lies (SliceGPT, arXiv 2401.15024, here with one rotation for all layers); while it learns
the tasks, each of its layers is given what the same layer was given in the wide model (FitNets, arXiv 1412.6550).
"""

from __future__ import annotations

import copy
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import torch
from torch.nn import functional as F
from transformers import Qwen3VLForConditionalGeneration

from ..verifier.model import VisionLanguageModel
from ..verifier.tree import PAD_SEGMENT, Packed
from .fitting import Batch, pack_with_targets
from .loss import distillation_loss, margin

TEXT = "model.language_model."


@dataclass(frozen=True)
class Slim:
    """What stays: the sizes of residual stream and MLP, the layers by their number in the wide model, and the heads of
    each as (layer, head) there; a head may come from another layer than the MLP and the norms beside it."""

    width: int
    mlp: int
    layers: tuple[int, ...]
    heads: tuple[tuple[tuple[int, int], ...], ...]


@torch.no_grad()
def slimmed(
    wide: VisionLanguageModel, slim: Slim, batches: Sequence[Batch]
) -> tuple[VisionLanguageModel, torch.Tensor]:
    """The model before it has learned anything anew, and the directions kept, (hidden, width)."""
    directions = principal_directions(wide, batches, slim.width)
    model = Qwen3VLForConditionalGeneration(_config(wide.model.config, slim))
    state = model.state_dict()
    for name, value in _state(wide.model, slim, directions).items():
        state[name].copy_(value)
    model.tie_weights()
    return VisionLanguageModel(model, wide.processor, wide.path), directions


@torch.no_grad()
def principal_directions(model: VisionLanguageModel, batches: Sequence[Batch], width: int) -> torch.Tensor:
    """(hidden, width), orthonormal: the directions that hold most of the residual stream, normalised as the layers see
    it, over all layers and tokens."""
    moments: Any = 0
    for batch in batches:
        packed, _ = pack_with_targets(model, batch)
        for states in _states(model, packed)[:-1]:
            seen = _normalised(states[packed.segment != PAD_SEGMENT])
            moments = moments + seen.T @ seen / len(seen)
    return torch.linalg.eigh(moments).eigenvectors[:, -width:]


def _config(wide: Any, slim: Slim) -> Any:
    config = copy.deepcopy(wide)
    text = config.text_config
    text.hidden_size = config.vision_config.out_hidden_size = slim.width
    text.intermediate_size, text.num_hidden_layers = slim.mlp, len(slim.layers)
    text.num_attention_heads = text.num_key_value_heads = len(slim.heads[0])
    return config


def _state(wide: Any, slim: Slim, directions: torch.Tensor) -> dict[str, torch.Tensor]:
    """The weights in the new directions. The gain of a norm goes into what reads it; what is read is louder by the root
    of the widths' ratio, since a norm divides by the root mean square over fewer entries."""
    old, size = wide.state_dict(), wide.config.text_config.head_dim
    louder = (len(directions) / slim.width) ** 0.5

    def read(layer: int, part: str, norm: str, rows: Any) -> torch.Tensor:
        weight = old[f"{TEXT}layers.{layer}.{part}.weight"] * old[f"{TEXT}layers.{layer}.{norm}.weight"]
        return weight[rows] @ directions * louder

    def written(layer: int, part: str, columns: Any) -> torch.Tensor:
        return directions.T @ old[f"{TEXT}layers.{layer}.{part}.weight"][:, columns]

    state = {name: value for name, value in old.items() if name.startswith("model.visual.")}
    for name in state:
        if "merger" in name and "linear_fc2" in name:  # what writes into the residual stream
            state[name] = directions.T @ state[name]
    state[f"{TEXT}embed_tokens.weight"] = old[f"{TEXT}embed_tokens.weight"] @ directions
    gain = directions.T @ torch.diag(old[f"{TEXT}norm.weight"]) @ directions
    state[f"{TEXT}norm.weight"] = gain.diag() * louder  # as near as a gain can come: embeddings are tied
    for number, (layer, heads) in enumerate(zip(slim.layers, slim.heads, strict=True)):
        now, rows = f"{TEXT}layers.{number}.", [(n, slice(size * head, size * (head + 1))) for n, head in heads]
        for part in (f"self_attn.{name}_proj" for name in "qkv"):
            state[f"{now}{part}.weight"] = torch.cat([read(n, part, "input_layernorm", head) for n, head in rows])
        part = "self_attn.o_proj"
        state[f"{now}{part}.weight"] = torch.cat([written(n, part, head) for n, head in rows], dim=1)
        for part in ("self_attn.q_norm", "self_attn.k_norm"):
            state[f"{now}{part}.weight"] = old[f"{TEXT}layers.{layer}.{part}.weight"]
        neurons = _loudest(wide, layer, slim.mlp)
        for part in ("mlp.gate_proj", "mlp.up_proj"):
            state[f"{now}{part}.weight"] = read(layer, part, "post_attention_layernorm", neurons)
        state[f"{now}mlp.down_proj.weight"] = written(layer, "mlp.down_proj", neurons)
    return state


def _loudest(wide: Any, layer: int, count: int) -> torch.Tensor:
    """The neurons of an MLP whose weights, in and out, are the greatest."""
    mlp = wide.model.language_model.layers[layer].mlp
    loudness = mlp.up_proj.weight.norm(dim=1) * mlp.down_proj.weight.norm(dim=0)
    return loudness.topk(count).indices.sort().values


class Following:
    """The loss of a slim model: its tasks', plus `weight` times the mean squared distance of what its layers and its head
    are given from what the same ones are given in the wide model, both normalised, in the directions kept."""

    def __init__(self, wide: VisionLanguageModel, slim: Slim, directions: torch.Tensor, weight: float = 5.0):
        self.wide, self.directions, self.weight = wide, directions, weight
        self.followed = [*slim.layers, -1]
        wide.model.eval().requires_grad_(False)

    def __call__(self, model: VisionLanguageModel, batch: Batch) -> torch.Tensor:
        packed, found = pack_with_targets(model, batch)
        states = _states(model, packed)
        with torch.no_grad():
            shown = _states(self.wide, packed)
        head, last = model.model.lm_head, states[-1]
        tokens = head(last[found.token_rows, found.token_columns])
        verdicts = head(last[found.verdict_rows, found.verdict_columns])
        loss = distillation_loss(tokens, margin(verdicts, model.encoder), found)
        real = packed.segment != PAD_SEGMENT
        goals = [_normalised(shown[layer][real] @ self.directions) for layer in self.followed]
        far = [F.mse_loss(_normalised(state[real]), goal) for state, goal in zip(states, goals, strict=True)]
        return loss + self.weight * torch.stack(far).mean()


def _states(model: VisionLanguageModel, packed: Packed) -> Sequence[torch.Tensor]:
    """What each layer and the head are given, (B, tokens, hidden) each."""
    return model.model.model(**packed.forward_inputs(), use_cache=False, output_hidden_states=True).hidden_states


def _normalised(states: torch.Tensor) -> torch.Tensor:
    return F.rms_norm(states, states.shape[-1:], eps=1e-6)
