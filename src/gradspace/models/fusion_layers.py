"""BERT layers whose words attend to each other and to the regions of an image."""

from __future__ import annotations

from typing import Any

from torch import Tensor, nn

HEAD_WIDTH = 64
"""Width of a head of BERT's attention."""


class FusionLayers(nn.ModuleList):
    """transformers' BERT layers with cross-attention, whose keys and values read image features.

    Every word attends to all words, before and after it.
    """

    def __init__(self, config: Any, image_width: int, num_layers: int) -> None:
        from transformers.models.bert.modeling_bert import BertLayer

        config = type(config).from_dict(config.to_dict())
        config.is_decoder = config.add_cross_attention = True
        config._attn_implementation = "sdpa"
        super().__init__(BertLayer(config, layer_idx=i) for i in range(num_layers))
        self.width = int(config.hidden_size)
        for layer in self:
            attention: Any = layer.crossattention
            attention.self.key = nn.Linear(image_width, self.width)
            attention.self.value = nn.Linear(image_width, self.width)
        for part in self.modules():
            if isinstance(part, nn.Linear):
                nn.init.normal_(part.weight, std=config.initializer_range)
                nn.init.zeros_(part.bias)

    def take_over(self, layers: nn.ModuleList) -> None:
        """Copy the weights of a text encoder's layers; cross-attention keeps its own."""
        for layer, source in zip(self, layers, strict=True):
            layer.load_state_dict(source.state_dict(), strict=False)

    def forward(self, words: Tensor, present: Tensor, regions: Tensor) -> Tensor:
        """Fuse words, masked by `present`, and regions to [pairs, words, width]."""
        seen = present[:, None, None].expand(-1, -1, words.shape[1], -1)
        for layer in self:
            found = layer(words, attention_mask=seen, encoder_hidden_states=regions)
            words = found[0] if isinstance(found, tuple) else found  # by version of transformers
        return words


def small_config(width: int, dropout: float) -> Any:
    """Configure BERT layers of a given width, with heads about 64 wide, for use without a BERT.

    Initial weights scale with width^-0.5. With BERT's 0.02, which suits its own width, such narrow
    layers pass on so little at first that they learn nothing for hundreds of steps.
    """
    from transformers import BertConfig

    most = max(1, width // HEAD_WIDTH)
    num_heads = next(heads for heads in range(most, 0, -1) if width % heads == 0)
    return BertConfig(
        hidden_size=width,
        num_attention_heads=num_heads,
        intermediate_size=4 * width,
        hidden_dropout_prob=dropout,
        attention_probs_dropout_prob=dropout,
        initializer_range=width**-0.5,
    )
