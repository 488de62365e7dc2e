"""A plain ViT's checkpoint in timm's layout, renamed to Hugging Face's names."""

import re
from collections.abc import Mapping
from math import isqrt
from typing import Any

from torch import Tensor

from feddle.data.source import Unusable

_HEAD_WIDTH = 64  # of an attention head, in every plain ViT of timm's
_NAMES = {
    "cls_token": "vit.embeddings.cls_token",
    "pos_embed": "vit.embeddings.position_embeddings",
    "patch_embed.proj": "vit.embeddings.patch_embeddings.projection",
    "norm": "vit.layernorm",
    "norm1": "layernorm_before",
    "attn.proj": "attention.output.dense",
    "norm2": "layernorm_after",
    "mlp.fc1": "intermediate.dense",
    "mlp.fc2": "output.dense",
}


def config_of_timm(state: Mapping[str, Tensor], settings: Mapping[str, Any]) -> dict[str, Any]:
    """The arguments of transformers' ViTConfig, read from the shapes of the weights."""
    try:
        width, channels, patch, _ = state["patch_embed.proj.weight"].shape
        side = isqrt(state["pos_embed"].shape[1] - 1)
        hidden = state["blocks.0.mlp.fc1.weight"].shape[0]
    except (KeyError, ValueError, IndexError) as error:
        wrong = "one of patch_embed.proj.weight, pos_embed and blocks.0.mlp.fc1.weight is missing or misshaped"
        raise Unusable(f"it is not a plain ViT, {wrong}") from error
    return {
        "hidden_size": width,
        "num_hidden_layers": len({name.split(".")[1] for name in state if name.startswith("blocks.")}),
        "num_attention_heads": (settings.get("model_args") or {}).get("num_heads", max(1, width // _HEAD_WIDTH)),
        "intermediate_size": hidden,
        "image_size": side * patch,
        "patch_size": patch,
        "num_channels": channels,
        "layer_norm_eps": 1e-6,
        "qkv_bias": "blocks.0.attn.qkv.bias" in state,
    }


def state_from_timm(state: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """The weights except the head's; a tensor that a plain ViT does not have is refused."""
    renamed: dict[str, Tensor] = {}
    for name, tensor in state.items():
        found = re.fullmatch(r"(?:blocks\.(\d+)\.)?(.+?)(\.weight|\.bias)?", name)
        block, layer, kind = found.groups(default="") if found else ("", name, "")
        prefix = f"vit.encoder.layer.{block}." if block else ""
        if block and layer == "attn.qkv":  # timm keeps the three in one matrix
            for part, values in zip(("query", "key", "value"), tensor.chunk(3), strict=True):
                renamed[f"{prefix}attention.attention.{part}{kind}"] = values.contiguous()
        elif layer in _NAMES and _NAMES[layer].startswith("vit.") != bool(block):
            renamed[f"{prefix}{_NAMES[layer]}{kind}"] = tensor
        elif block or layer != "head":
            raise Unusable(f"the checkpoint in timm's layout holds {name}, which a plain ViT does not have")
    return renamed
