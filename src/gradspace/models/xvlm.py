"""Loading of published X-VLM weights into `fusion` with a Swin backbone and a BERT.

| published | here |
|---|---|
| `vision_encoder.*`, Swin's own names | `images.network.*`, those of transformers |
| `...attn.qkv` | the query, key and value layers, a third each |
| `text_encoder.bert.embeddings.*` | `texts.network.embeddings.*` |
| `text_encoder.bert.encoder.layer.0-5.*` | `texts.network.encoder.layer.0-5.*` |
| `text_encoder.bert.encoder.layer.6-11.*`, with `crossattention` | `fusion.0-5.*` |
| `vision_proj`, `text_proj` | `image_projection`, `text_projection` |
| `itm_head.0`, `.1`, `.3` | `matching_head.0`, `.1`, `.3` |
| `temp` | `temperature`, of the draw of hard negatives |

Fine-tuned weights lack `bert.`. The pre-training heads, `text_encoder.cls` and `bbox_head`, and
computed tables (positions, windows) are left out. Everything else must exist on both sides.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path

import torch
from safetensors import SafetensorError
from safetensors.torch import load_file
from torch import Tensor, nn

LEFT_OUT = re.compile(
    r"^(text_encoder\.cls|bbox_head)\.|\.(relative_position_index|attn_mask|position_ids)$"
)
NAMES = [
    (r"^image_projection\.", "vision_proj."),
    (r"^text_projection\.", "text_proj."),
    (r"^matching_head\.", "itm_head."),
    (r"^temperature$", "temp"),
    (r"^texts\.network\.", "text_encoder."),
    (r"^images\.network\.", "vision_encoder."),
]
SWIN = [
    (r"\.embeddings\.patch_embeddings\.projection\.", ".patch_embed.proj."),
    (r"\.embeddings\.norm\.", ".patch_embed.norm."),
    (r"\.encoder\.layers\.", ".layers."),
    (r"\.layernorm_before\.", ".norm1."),
    (r"\.layernorm_after\.", ".norm2."),
    (r"\.attention\.(o_proj|output\.dense)\.", ".attn.proj."),
    (r"\.attention\.(\w+\.)?relative_position_bias_table", ".attn.relative_position_bias_table"),
    (r"\.intermediate\.dense\.", ".mlp.fc1."),
    (r"(\.blocks\.\d+)\.output\.dense\.", r"\1.mlp.fc2."),
    (r"^vision_encoder\.layernorm\.", "vision_encoder.norm."),
]
THIRDS = re.compile(r"\.attention\.(q_proj|self\.query|k_proj|self\.key|v_proj|self\.value)\.")
PLACE = {"q": 0, "k": 1, "v": 2}


def load_published(model: nn.Module, path: Path) -> None:
    """Load published weights into a `fusion`; missing or unexpected ones are an error, by name."""
    published = _read(path)
    wanted = {
        name: value for name, value in model.state_dict().items() if not LEFT_OUT.search(name)
    }
    num_text = _num_text_layers(wanted)
    sources = {name: published_name(name, num_text) for name in wanted}
    missing = sorted({source for source, _ in sources.values()} - published.keys())
    left = sorted(published.keys() - {source for source, _ in sources.values()})
    if missing or left:
        found = [(missing, "lacks"), (left, "has, unlike the model,")]
        told = "; it ".join(f"{verb} {', '.join(names)}" for names, verb in found if names)
        raise ValueError(f"{path} does not fit the model: it {told}")
    loaded = {name: _third(published[source], part) for name, (source, part) in sources.items()}
    for name, value in loaded.items():
        if value.shape != wanted[name].shape:
            raise ValueError(
                f"{sources[name][0]} of {path} is {list(value.shape)}, but the model's {name} is "
                f"{list(wanted[name].shape)}"
            )
    model.load_state_dict(loaded, strict=False)


def published_name(name: str, num_text_layers: int) -> tuple[str, int | None]:
    """Find a weight's name in X-VLM, and which third of it to take: 0, 1, 2, or None for all."""
    layer = re.match(r"fusion\.(\d+)\.(.*)", name)
    if layer:
        number = int(layer[1]) + num_text_layers
        return f"text_encoder.encoder.layer.{number}.{layer[2]}", None
    for pattern, published in NAMES:
        name = re.sub(pattern, published, name)
    if not name.startswith("vision_encoder."):
        return name, None
    third = THIRDS.search(name)
    name = THIRDS.sub(".attn.qkv.", name)
    for pattern, published in SWIN:
        name = re.sub(pattern, published, name)
    return name, PLACE[third[1].removeprefix("self.")[0]] if third else None


def _read(path: Path) -> dict[str, Tensor]:
    """Read published weights, dropping those that are left out and the prefix `bert.`."""
    if path.suffix != ".safetensors":
        raise ValueError(
            f"{path} is not a .safetensors file; a pickled one can run code when it is opened: "
            "convert it with safetensors.torch.save_file(torch.load(PATH, weights_only=True)"
            "['model'], NEW_PATH)"
        )
    try:
        tensors = load_file(path)
    except (OSError, SafetensorError) as error:
        raise ValueError(f"cannot read {path}: {error}") from error
    prefix = "text_encoder."
    return {
        name.replace(f"{prefix}bert.", prefix): value
        for name, value in tensors.items()
        if not LEFT_OUT.search(name)
    }


def _num_text_layers(names: Mapping[str, Tensor]) -> int:
    found = [re.match(r"texts\.network\.encoder\.layer\.(\d+)\.", name) for name in names]
    return 1 + max((int(match[1]) for match in found if match), default=-1)


def _third(value: Tensor, part: int | None) -> Tensor:
    return value if part is None else torch.chunk(value, 3)[part]
