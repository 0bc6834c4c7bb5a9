"""`gradspace evaluate` and `gradspace embed`: numbers and vectors from a trained run."""

from __future__ import annotations

import json
from pathlib import Path

import torch
import typer

from gradspace import processes
from gradspace.cli import options
from gradspace.cli.shared import console, errors, process_group, progress_bar
from gradspace.files import check_out_file
from gradspace.indexes.fill import embed_shards
from gradspace.indexes.shards import PLAN
from gradspace.runs.data import run_split
from gradspace.runs.embed import note_on_words
from gradspace.runs.evaluate import TOP, Evaluation, evaluate
from gradspace.runs.model import LoadedModel, load
from gradspace.runs.represent import embed_split
from gradspace.scores.represented import Embeddings, save_embeddings
from gradspace.wording import counted, typed


def add_to(app: typer.Typer) -> None:
    app.command("evaluate")(evaluate_command)
    app.command("embed")(embed)


def evaluate_command(
    runs: options.Runs,
    data: options.Data = None,
    features: options.FeaturesOption = None,
    split: options.SplitName = "test",
    folds: options.Folds = 1,
    eccv: options.Eccv = False,
    propose: options.Propose = None,
    top: options.TopOption = None,
    rerank: options.Rerank = None,
    proposal_weight: options.ProposalWeight = None,
    device: options.Device = None,
    as_json: options.AsJson = False,
) -> None:
    """Measure the retrieval of a run both ways, or of several runs with averaged scores."""
    if eccv and (propose or rerank):
        option = "--propose" if propose else "--rerank"
        raise ValueError(f"--eccv ranks all candidates: leave {option} out")
    with process_group():
        found = evaluate(
            runs,
            data,
            split=split,
            features=features,
            folds=folds,
            propose=propose,
            top=top,
            rerank=rerank,
            proposal_weight=proposal_weight,
            eccv=eccv,
            device=device,
            show=progress_bar,
        )
        if not processes.is_first():
            return
        if as_json:
            coco = found.eccv if eccv else None
            print(json.dumps({**found.to_dict(), "eccv": coco}, indent=2))
            return
        what = f"the mean of {len(runs)} runs" if len(runs) > 1 else typed(runs[0])
        what += f", the best {top or TOP} of {propose}," if propose else ""
        what += f", its best {rerank} re-ranked," if rerank else ""
        _show(found, f"{what} on {split}", eccv)


def _show(found: Evaluation, title: str, eccv: bool) -> None:
    folds = f", mean of {found.folds} folds" if found.folds > 1 else ""
    if found.split.drawn:
        console.print(found.split.announcement, markup=False, highlight=False, soft_wrap=True)
    told = f"{title}{folds}; recalls and mAP in percent"
    console.print(told, markup=False, highlight=False, soft_wrap=True)
    console.print(str(found.report), markup=False, highlight=False, soft_wrap=True)
    total = sum(found.report.cross_rank.values())
    console.print("pairs by cross-retrieval rank, in percent:", highlight=False)
    shares = {rank: 100 * count / total for rank, count in found.report.cross_rank.items()}
    ranks = "  ".join(f"{rank}: {share:.1f}" for rank, share in shares.items())
    console.print(f"  {ranks}", markup=False, highlight=False, soft_wrap=True)
    if found.text_report is not None:
        console.print("\nwith equal captions of other images as positives too:")
        console.print(str(found.text_report), markup=False, highlight=False, soft_wrap=True)
    if found.true_report is not None:
        console.print("\nwith every caption that is true of an image as its positive:")
        console.print(str(found.true_report), markup=False, highlight=False, soft_wrap=True)
    for name, values in (found.eccv if eccv else {}).items():
        both = f"image -> text {values['i2t']:.1f}, text -> image {values['t2i']:.1f}"
        console.print(f"{name:>15}  {both}", markup=False, highlight=False)


def embed(
    run: options.Embedder,
    out: options.EmbeddedOption,
    texts: options.OwnTexts = None,
    images: options.OwnImages = None,
    data: options.Data = None,
    features: options.FeaturesOption = None,
    split: options.OtherSplit = None,
    shards: options.ShardsOption = None,
    num_workers: options.NumWorkers = None,
    device: options.Device = None,
) -> None:
    """Write the embeddings of a split, or of your own sentences and pictures.

    With --shards it fills a folder, also from photos or a file of captions. Any number of processes
    and machines share the work, and may be started and killed at any time.
    """
    if shards is not None or (out / PLAN).exists():
        if texts or images:
            raise ValueError("--text and --image go into a file: leave --shards out")
        _embed_shards(run, out, shards, data, features, split, num_workers, device)
        return
    check_out_file(out)
    if num_workers is not None:
        raise ValueError("--num-workers is for --shards: leave it out")
    if (texts or images) and (data or features or split):
        raise ValueError(
            "--text and --image are embedded without a dataset: leave --data, --features and "
            "--split out"
        )
    with process_group():
        if texts or images:
            found = _own_embeddings(load(run, device), texts or [], images or [])
            what = f"{counted(len(images or []), 'image')} and {counted(len(texts or []), 'text')}"
        else:
            chosen = run_split(run, split or "test", data, features, progress_bar)
            if chosen.drawn:
                console.print(chosen.announcement, markup=False, highlight=False, soft_wrap=True)
            system = load(run, device).system
            with progress_bar("embedding") as progress:
                found = embed_split(system, chosen, progress)
            what = f"images and texts, {list(found.images.shape)} and {list(found.texts.shape)},"
        if processes.is_first():
            save_embeddings(out, found)
            console.print(
                f"wrote {what} to {typed(out)}", markup=False, highlight=False, soft_wrap=True
            )


def _embed_shards(
    run: Path,
    out: Path,
    shards: int | None,
    data: str | None,
    features: Path | None,
    split: str | None,
    num_workers: int | None,
    device: str | None,
) -> None:
    try:
        done = embed_shards(
            run,
            data,
            out=out,
            shards=shards,
            split=split,
            features=features,
            num_workers=num_workers,
            device=device,
            show=progress_bar,
        )
    except KeyboardInterrupt:
        again = "stopped; complete shards are kept, and the same command resumes"
        raise KeyboardInterrupt(again) from None
    found = done.manifest
    what = f"{counted(found['images'], 'image')} and {counted(found['captions'], 'caption')}"
    left = f", {len(found['broken']):,} left out" if found["broken"] else ""
    console.print(
        f"filled {done.own} of {counted(done.plan.num_shards, 'shard')}; {typed(out)} is complete: "
        f"{what}{left}",
        markup=False,
        highlight=False,
        soft_wrap=True,
    )


def _own_embeddings(model: LoadedModel, texts: list[str], images: list[Path]) -> Embeddings:
    for text in texts:
        if note := note_on_words(model.system, text):
            errors.print(note, style="yellow", markup=False, highlight=False, soft_wrap=True)
    return Embeddings(
        images=model.embed_images(images),
        texts=model.embed_texts(texts),
        image_ids=torch.arange(len(images)),
        text_ids=-1 - torch.arange(len(texts)),
        image_names=[str(path) for path in images],
        captions=texts,
    )
