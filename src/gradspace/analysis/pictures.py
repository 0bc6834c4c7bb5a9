"""Pictures of what a model retrieves: captions with the images they bring up, best first."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from PIL import Image, ImageDraw, ImageFont

from gradspace.data.dataset import Split
from gradspace.embedding import Embeddings

SIDE, GAP, LINE = 128, 6, 18
RIGHT, WRONG = "#2a9d4a", "#c9ccd1"


def retrieved_images(
    embeddings: Embeddings, split: Split, captions: Sequence[int], num: int = 6
) -> Image.Image:
    """One row per caption: its best `num` images, the one it was written for framed in green."""
    if split.images is None:
        raise ValueError(f"split {split.name!r} has no images to show, only features")
    chosen = torch.tensor(list(captions))
    scores = embeddings.texts[chosen] @ embeddings.images.t()
    best = scores.topk(min(num, scores.shape[1]), dim=1).indices.tolist()
    height = LINE + SIDE + 2 * GAP
    sheet = Image.new("RGB", (num * (SIDE + GAP) + GAP, height * len(best) + GAP), "white")
    draw = ImageDraw.Draw(sheet)
    font = ImageFont.load_default(13)
    for row, (caption, images) in enumerate(zip(captions, best, strict=True)):
        top = GAP + row * height
        draw.text((GAP, top), split.captions[caption], fill="#222", font=font)
        for place, image in enumerate(images):
            left, below = GAP + place * (SIDE + GAP), top + LINE
            picture = split.images.load(image).resize((SIDE, SIDE))
            sheet.paste(picture, (left, below))
            own = image == int(split.image_of_caption[caption])
            frame = (left - 2, below - 2, left + SIDE + 1, below + SIDE + 1)
            draw.rectangle(frame, outline=RIGHT if own else WRONG, width=4 if own else 1)
    return sheet
