"""VSRN as its authors have it, and as ICR has it, with a caption decoder and without."""

from __future__ import annotations

from typing import Any

import torch
from published.authors import ICR, ON_CPU, VSRN, Authors, Code, shake
from published.make_models import FEATURES, LENGTHS, VOCABULARY, WIDTH, WORD, captions, features
from published.reference import Reference
from torch import Tensor, nn

REGIONS, HIDDEN, LONGEST = 5, 6, 9
ABSENT = ("torchvision", "torchvision.models", "misc.rewards", "wandb")
DATASETS = {"flickr30k": "f30k_precomp", "coco": "coco_precomp"}


def vsrn(authors: Authors) -> Reference:
    """Images for both datasets in training and evaluation, texts, and a step with the captions."""
    reference = Reference()
    images, tokens = features(10, REGIONS), captions(11)
    lengths = torch.tensor(LENGTHS)
    reference.put("input", images=images, tokens=tokens, lengths=lengths)
    with authors.code(VSRN, mends=ON_CPU, absent=ABSENT) as code:
        module = code.module("model")
        text = module.EncoderText(VOCABULARY, WORD, WIDTH, 1)
        shake(text, 12)
        caption_loss = _caption_loss(code)
        reference.put_weights("text", text)
        reference.put_weights("caption", caption_loss.network)
        for name, dataset in DATASETS.items():
            image = module.EncoderImagePrecompAttn(FEATURES, WIDTH, dataset)
            texts = text(tokens, LENGTHS)
            embeddings, regions = _put_images(reference, name, image, images)
            loss = module.ContrastiveLoss(margin=0.2, max_violation=True)(embeddings, texts)
            described = caption_loss(regions, tokens)
            torch.autograd.backward(loss + described)
            reference.put(name, texts=texts, loss=loss, caption_loss=described)
            networks = {"image": image, "text": text, "caption": caption_loss.network}
            for side, network in networks.items():
                reference.put_gradients(f"{name}/{side}", network)
                network.zero_grad()
    with authors.code(ICR, mends=ON_CPU, absent=ABSENT) as code:
        module = code.module("VSRN.model")
        for name, dataset in DATASETS.items():
            image = module.EncoderImagePrecompAttn(FEATURES, WIDTH, dataset)
            embeddings, _ = _put_images(reference, f"icr {name}", image, images)
            torch.autograd.backward(embeddings[:, 0].sum())
            reference.put_gradients(f"icr {name}/image", image)
    return reference


def _put_images(
    reference: Reference, name: str, image: Any, images: Tensor
) -> tuple[Tensor, Tensor]:
    """Embeddings in evaluation, and then in training, which are returned with the regions."""
    shake(image, 13)
    reference.put_weights(f"{name}/image", image)
    reference.put(name, evaluated=image.eval()(images)[0])
    embeddings, regions = image.train()(images)
    reference.put(name, trained=embeddings)
    return embeddings, regions


class _CaptionLoss:
    """Loss of captions given regions; labels and masks are padded as in the authors' loader."""

    def __init__(self, network: nn.Module, criterion: nn.Module) -> None:
        self.network, self.criterion = network, criterion

    def __call__(self, regions: Tensor, tokens: Tensor) -> Tensor:
        labels = tokens.new_zeros(len(tokens), LONGEST + 1)
        labels[:, : tokens.shape[1]] = tokens
        counted = torch.arange(LONGEST + 1) <= torch.tensor(LENGTHS)[:, None]
        words, _ = self.network(regions.contiguous(), labels, "train")
        loss: Tensor = self.criterion(words, labels[:, 1:], counted[:, 1:].float())
        return loss


def _caption_loss(code: Code) -> _CaptionLoss:
    networks, utils = code.module("models"), code.module("misc.utils")
    encoder = networks.EncoderRNN(WIDTH, HIDDEN, input_dropout_p=0, rnn_dropout_p=0)
    decoder = networks.DecoderRNN(
        VOCABULARY, LONGEST, HIDDEN, WORD, input_dropout_p=0, rnn_dropout_p=0
    )
    network = networks.S2VTAttModel(encoder, decoder)
    shake(network, 14)
    return _CaptionLoss(network, utils.LanguageModelCriterion())
