"""`gradspace evaluate` and `gradspace embed`: numbers and vectors from a trained run."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Annotated

import torch
import typer
from PIL import Image
from torch import Tensor

from gradspace import processes
from gradspace.cli.shared import (
    AsJson,
    Data,
    Device,
    Features,
    console,
    open_recipe_data,
    process_group,
    progress_bar,
)
from gradspace.data.dataset import Split
from gradspace.data.readers.scenes import SceneImages, true_relevance
from gradspace.metrics import retrieval_report
from gradspace.metrics.eccv import eccv_caption_report
from gradspace.processes import choose_device
from gradspace.progress import Progress
from gradspace.runs.data import run_data
from gradspace.runs.embed import embed_captions, embed_pictures
from gradspace.runs.represent import embed_split, represent_split, rerank_split
from gradspace.runs.system import System, is_pretrained, load_system
from gradspace.scores.represented import (
    Embeddings,
    Parts,
    Represented,
    mean_scores,
    save_embeddings,
)
from gradspace.scores.tiles import PairScores, Scores
from gradspace.scores.two_stage import TwoStageScores

Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN...",
        help="Folders of trained runs; or CLIP, SigLIP ... as they are, a folder or hub name.",
    ),
]
SplitName = Annotated[str, typer.Option("--split", help="train, dev or test.")]


def add_to(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate)
    app.command("embed")(embed)


def evaluate(
    runs: Runs,
    data: Data = None,
    features: Features = None,
    split: SplitName = "test",
    folds: Annotated[int, typer.Option(min=1, help="Mean over so many parts (COCO 1K: 5).")] = 1,
    eccv: Annotated[
        bool, typer.Option("--eccv", help="COCO's test set: also ECCV Caption and CxC.")
    ] = False,
    propose: Annotated[
        Path | None,
        typer.Option(metavar="RUN", help="A run that embeds: RUN scores only its best candidates."),
    ] = None,
    top: Annotated[int, typer.Option(min=1, help="How many it proposes to each query.")] = 100,
    rerank: Annotated[
        int | None,
        typer.Option(min=1, help="RUN embeds and scores pairs: it orders so many of its own."),
    ] = None,
    proposal_weight: Annotated[
        float | None,
        typer.Option(help="Of the embeddings' scores in --rerank; fusion: 1 / temperature."),
    ] = None,
    device: Device = None,
    as_json: AsJson = False,
) -> None:
    """Retrieval metrics of a run, both ways; of several runs by the mean of their scores."""
    with process_group():
        chosen = _open_split(runs[0], data, features, split)
        if propose and rerank:
            raise ValueError("give --propose or --rerank, not both: the run proposes for itself")
        folders = [*runs, propose] if propose else runs
        members = []
        for folder in folders:
            system = load_system(folder, choose_device(device))
            members.append(_represent(system, _open_split(folder, data, features, split)))
        for folder, member in zip(folders, members, strict=True):
            if list(member.captions) != list(members[0].captions):
                raise ValueError(f"{folder} was trained on other data than {runs[0]}: give --data")
        if not processes.is_first():
            return
        what = f"the mean of {len(runs)} runs" if len(runs) > 1 else str(runs[0])
        what += f", the best {top} of {propose}," if propose else ""
        what += f", its best {rerank} re-ranked," if rerank else ""
        title = f"{what} on {split}" + (f", mean of {folds} folds" if folds > 1 else "")
        with progress_bar("scoring") as progress:
            scores: Scores | TwoStageScores
            if propose:
                scores = _two_stage(members, folders, top, progress, eccv)
            elif rerank:
                found = _own_proposals(members, runs[0], eccv)
                scores = rerank_split(
                    system, chosen, found, rerank, progress, proposal_weight=proposal_weight
                )
            else:
                scores = _once(mean_scores(members, progress), folds, eccv)
            _print_report(
                scores, members[0], chosen, title, folds=folds, eccv=eccv, as_json=as_json
            )


def _two_stage(
    members: list[Represented], folders: list[Path], top: int, progress: Progress, eccv: bool
) -> TwoStageScores:
    scorer, *others, proposer = members
    if others or not isinstance(scorer, Parts):
        raise ValueError(
            "--propose is for one run that scores pairs, as scan and bfan do; "
            + (f"got {len(folders) - 1}" if others else f"{folders[0]} embeds")
        )
    if not isinstance(proposer, Embeddings):
        raise ValueError(f"--propose needs a run that embeds, and {folders[-1]} scores pairs")
    if eccv:
        raise ValueError("--eccv looks at all candidates: leave --propose out")
    return TwoStageScores(proposer.scores(), scorer.scores(progress), top)


def _own_proposals(members: list[Represented], folder: Path, eccv: bool) -> Embeddings:
    found, *others = members
    if others or not isinstance(found, Embeddings):
        raise ValueError(
            "--rerank is for one run that embeds and scores pairs, as fusion does; "
            + (f"got {len(members)} runs" if others else f"{folder} has no embeddings: --propose")
        )
    if eccv:
        raise ValueError("--eccv looks at all candidates: leave --rerank out")
    return found


def _once(scores: Scores, folds: int, eccv: bool) -> Scores:
    """Scores of pairs that more than one report looks at are computed once, for all of them."""
    if isinstance(scores, PairScores) and (folds == 1 or eccv):
        return scores.matrix()
    return scores


def _print_report(
    scores: Scores | TwoStageScores,
    found: Represented,
    chosen: Split,
    title: str,
    *,
    folds: int,
    eccv: bool,
    as_json: bool,
) -> None:
    report = retrieval_report(scores, found.positives(), folds=folds)
    truth = _true_positives(chosen)
    true_report = None if truth is None else retrieval_report(scores, truth, folds=folds)
    coco = None
    if eccv and not isinstance(scores, TwoStageScores):
        coco = _eccv_caption(scores, chosen)
    if as_json:
        also = {"true_relevance": true_report.to_dict() if true_report else None, "eccv": coco}
        print(json.dumps({**report.to_dict(), **also}, indent=2))
        return
    console.print(title, highlight=False)
    console.print(str(report), highlight=False)
    console.print("pairs by cross-retrieval rank:", highlight=False)
    ranks = "  ".join(f"{rank}: {count:g}" for rank, count in report.cross_rank.items())
    console.print(f"  {ranks}", highlight=False)
    if true_report is not None:
        console.print("\nwith every caption that is true of an image as its positive:")
        console.print(str(true_report), highlight=False)
    for name, values in (coco or {}).items():
        both = f"image -> text {values['i2t']:.1f}, text -> image {values['t2i']:.1f}"
        console.print(f"{name:>15}  {both}", highlight=False)


def embed(
    run: Annotated[
        Path, typer.Argument(help="Folder of a trained run, or CLIP, SigLIP ... as they are.")
    ],
    out: Annotated[Path, typer.Option(help="A safetensors file to write.")],
    texts: Annotated[
        list[str] | None, typer.Option("--text", help="A sentence of your own; repeat for more.")
    ] = None,
    images: Annotated[
        list[Path] | None, typer.Option("--image", help="A picture of your own; repeat for more.")
    ] = None,
    data: Data = None,
    features: Features = None,
    split: SplitName = "test",
    device: Device = None,
) -> None:
    """Write the embeddings of a split, or of your own sentences and pictures."""
    with process_group():
        if texts or images:
            system = load_system(run, choose_device(device))
            found = _own_embeddings(system, texts or [], images or [])
            what = f"{len(found.image_names)} images and {len(found.captions)} texts"
        else:
            found = _embed(run, _open_split(run, data, features, split), device)
            what = f"images and texts, {list(found.images.shape)} and {list(found.texts.shape)},"
        if processes.is_first():
            save_embeddings(out, found)
            console.print(f"wrote {what} to {out}", highlight=False)


def _own_embeddings(system: System, texts: list[str], images: list[Path]) -> Embeddings:
    width = system.model.width
    return Embeddings(
        images=embed_pictures(system, [_open(path) for path in images])
        if images
        else torch.zeros(0, width),
        texts=embed_captions(system, texts) if texts else torch.zeros(0, width),
        image_ids=torch.arange(len(images)),
        text_ids=-1 - torch.arange(len(texts)),
        image_names=[str(path) for path in images],
        captions=texts,
    )


def _open_split(folder: Path, data: str | None, features: Path | None, name: str) -> Split:
    """A split of the data that a run was trained on, or of other data."""
    if data is None and is_pretrained(folder):
        raise ValueError(f"{folder} is a pretrained model and no run: give the dataset as --data")
    return open_recipe_data(run_data(folder, data, features)).split(name)


def _embed(folder: Path, split: Split, device: str | None) -> Embeddings:
    """The embeddings of a split by the best weights of a run."""
    system = load_system(folder, choose_device(device))
    with progress_bar("embedding") as progress:
        return embed_split(system, split, progress)


def _represent(system: System, split: Split) -> Represented:
    with progress_bar("embedding") as progress:
        return represent_split(system, split, progress)


def _eccv_caption(scores: Scores, split: Split) -> dict[str, dict[str, float]]:
    """COCO's image numbers are at the end of its file names."""
    numbers = [re.search(r"(\d+)\.\w+$", name) for name in split.image_names]
    if split.caption_ids is None or not all(numbers):
        raise ValueError(
            "--eccv needs COCO's numbers of captions: open Karpathy's dataset_coco.json"
        )
    images = [int(number[1]) for number in numbers if number]
    return eccv_caption_report(scores, images, split.caption_ids)


def _true_positives(split: Split) -> Tensor | None:
    """[images, captions]: who truly belongs to whom, where the dataset knows."""
    if not isinstance(split.images, SceneImages):
        return None
    return torch.from_numpy(true_relevance(split)).t()


def _open(path: Path) -> Image.Image:
    try:
        return Image.open(path).convert("RGB")
    except (OSError, SyntaxError) as error:
        raise ValueError(f"{path} is missing or not a picture ({error})") from error
