"""Use an objective in a training loop of your own.

Two small towers in plain torch: the mean of an image's regions, the mean of a caption's words.
gradspace gives the loss, the metrics and the count of what contributes to the gradient.

    python examples/own_training_loop.py --objective nt-xent --epochs 10
"""

from __future__ import annotations

import argparse

import numpy as np
import torch
from torch import Tensor, nn

import gradspace as gs
from gradspace.data import Split, Vocabulary
from gradspace.data.open import open_dataset


class Towers(nn.Module):
    def __init__(self, image_width: int, num_words: int, width: int = 128) -> None:
        super().__init__()
        self.image = nn.Linear(image_width, width)
        self.words = nn.EmbeddingBag(num_words, width, mode="mean")

    def forward(self, images: Tensor, captions: list[Tensor]) -> tuple[Tensor, Tensor]:
        starts = np.cumsum([0, *map(len, captions[:-1])])
        words = self.words(torch.cat(captions), torch.from_numpy(starts))
        return self.image(images), words


def read(split: Split, vocabulary: Vocabulary) -> tuple[Tensor, list[Tensor], Tensor]:
    """The mean region of every image, the words of every caption, and whose caption it is."""
    assert split.features is not None
    images = torch.stack(
        [torch.as_tensor(split.features.load(i)).mean(0) for i in range(len(split.image_names))]
    )
    captions = [torch.tensor(vocabulary.encode(caption)) for caption in split.captions]
    return images, captions, torch.as_tensor(split.image_of_caption)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--objective", default="nt-xent")
    parser.add_argument("--epochs", type=int, default=10)
    parser.add_argument("--num-train", type=int, default=1000)
    arguments = parser.parse_args()

    torch.manual_seed(0)
    data = open_dataset("scenes", num_train=arguments.num_train)
    vocabulary = Vocabulary.build(data.split("train").captions)
    images, captions, image_of = read(data.split("train"), vocabulary)
    towers = Towers(images.shape[1], len(vocabulary))
    loss = gs.RetrievalLoss(arguments.objective, normalize=True)
    optimizer = torch.optim.Adam(towers.parameters(), lr=3e-3)

    for epoch in range(arguments.epochs):
        for batch in torch.randperm(len(captions)).split(128):
            chosen, pairs = image_of[batch].unique(return_inverse=True)
            of_images, of_texts = towers(images[chosen], [captions[i] for i in batch.tolist()])
            value = loss(of_images, of_texts, image_ids=chosen, text_ids=chosen[pairs])
            optimizer.zero_grad()
            value.backward()
            optimizer.step()
        print(f"epoch {epoch + 1}: loss of the last batch {float(value.detach()):.3f}")

    images, captions, image_of = read(data.split("test"), vocabulary)
    with torch.no_grad():
        of_images, of_texts = towers(images, captions)
    scores = gs.EmbeddingScores(of_images, of_texts, normalize=True)
    positives = gs.match_ids(torch.arange(len(images)), image_of)
    print(gs.retrieval_report(scores, positives))
    matrix = scores.tile(slice(0, len(images)), slice(0, len(captions)))
    counts = gs.cocos(arguments.objective, matrix, positives)
    print(f"C^q: {counts.per_query:.0f} captions an image have a weight above 0.01 in its gradient")


if __name__ == "__main__":
    main()
