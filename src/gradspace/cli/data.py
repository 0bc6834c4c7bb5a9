"""`gradspace data`: look at datasets, check them, compute features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from gradspace.cli.options import AsJson, Device
from gradspace.cli.shared import console, progress_bar
from gradspace.data.check import check_dataset
from gradspace.data.open import open_dataset, open_items
from gradspace.data.regions.convert import convert_regions
from gradspace.data.scenes import Scenes, contact_sheet
from gradspace.files import write_atomically
from gradspace.models.features import extract_features
from gradspace.processes import choose_device
from gradspace.wording import typed

app = typer.Typer(help="Look at datasets, check them, compute features.")


def add_to(around: typer.Typer) -> None:
    around.add_typer(app, name="data", no_args_is_help=True)


Source = Annotated[str, typer.Argument(help='A path to captions, or "scenes".')]
ImagePath = Annotated[
    Path | None, typer.Option(help="Image folder or zip, where it is not beside the captions.")
]
SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Leave out items with problems.")]


@app.command()
def check(
    source: Source,
    images: ImagePath = None,
    features: Annotated[Path | None, typer.Option(help="Features to check with it.")] = None,
    as_json: AsJson = False,
) -> None:
    """Say what a dataset holds and everything that is wrong with it; exit 1 if anything is."""
    with progress_bar("decoding images") as progress:
        report = check_dataset(source, images=images, features=features, progress=progress)
    if as_json:
        print(json.dumps(report.to_dict(), indent=2))
    else:
        console.print(str(report), highlight=False, markup=False, soft_wrap=True)
    if report.problems:
        raise typer.Exit(1)


@app.command()
def scenes(
    show: Annotated[
        bool, typer.Option("--show", help="Write a contact sheet of images with captions.")
    ] = False,
    split: Annotated[str, typer.Option(help="train, dev or test.")] = "train",
    num: Annotated[int, typer.Option(min=1, help="Scenes to show.")] = 12,
    seed: Annotated[int, typer.Option(min=0)] = 0,
    out: Annotated[
        Path | None, typer.Option(help="Where --show writes the sheet; scenes.png by default.")
    ] = None,
) -> None:
    """Look at the built-in dataset: its captions, and with --show its pictures."""
    chosen = Scenes(split=split, num_images=num, seed=seed)
    if out is not None and not show:
        raise ValueError("--out goes with --show: give both to write a sheet of pictures")
    if show:
        out = out or Path("scenes.png")
        with write_atomically(out, "wb") as file:
            contact_sheet(chosen, num).save(file, "PNG")
        console.print(f"wrote {typed(out)}", markup=False, highlight=False, soft_wrap=True)
        return
    for index in range(num):
        console.print(f"{split}-{index:06d}", style="bold", markup=False, highlight=False)
        for caption in chosen.captions(index):
            console.print(f"  {caption.text}", highlight=False, markup=False)


@app.command()
def features(
    source: Source,
    backbone: Annotated[str, typer.Option(help="A transformers vision model, folder or hub name.")],
    out: Annotated[Path, typer.Option(help="Folder for the features; goes on where it stopped.")],
    grid: Annotated[
        bool, typer.Option("--grid", help="All positions of the feature map, not one vector.")
    ] = False,
    images: ImagePath = None,
    size: Annotated[
        int | None,
        typer.Option(min=1, help="Side of the pixels, the backbone's own where it is left out."),
    ] = None,
    whole: Annotated[
        bool,
        typer.Option("--whole", help="Squeeze the whole picture into the square, cut nothing off."),
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1)] = 32,
    num_workers: Annotated[int, typer.Option(min=0, help="Processes that decode images.")] = 2,
    skip_broken: SkipBroken = False,
    device: Device = None,
) -> None:
    """Run a backbone over a dataset once and keep what it sees, for training without it.

    Images are known by their names: delete the folder when a picture has changed.
    """
    with progress_bar("reading data") as progress:
        dataset = open_dataset(source, images=images, skip_broken=skip_broken, progress=progress)
    with progress_bar("computing features") as progress:
        shape = extract_features(
            dataset,
            backbone,
            out,
            grid=grid,
            batch_size=batch_size,
            num_workers=num_workers,
            device=choose_device(device),
            size=size,
            whole=whole,
            progress=progress,
        )
    _tell_features(shape, out)


@app.command()
def convert(
    regions: Annotated[
        Path,
        typer.Argument(help="Features of a detector: .tsv (or a glob of them), .hdf5, or an LMDB."),
    ],
    data: Annotated[str, typer.Option(help="The dataset whose images they are of.")],
    out: Annotated[Path, typer.Option(help="Folder for the features; goes on where it stopped.")],
    boxes: Annotated[
        int | None,
        typer.Option(min=1, help="Regions to keep of each image, where they have different ones."),
    ] = None,
    width: Annotated[
        int | None, typer.Option(min=1, help="Numbers of a region, where an LMDB has only numbers.")
    ] = None,
    ids: Annotated[
        Path | None, typer.Option(help="The image of every row, where an HDF5 file has no ids.")
    ] = None,
    float32: Annotated[
        bool, typer.Option("--float32", help="Keep all digits, in twice the space.")
    ] = False,
    skip_broken: SkipBroken = False,
) -> None:
    """Convert region features once into a folder that training reads row by row."""
    if not out.is_file():  # which is refused when it is known what is to be in the folder
        out.mkdir(parents=True, exist_ok=True)
    with progress_bar("reading data") as progress:
        dataset = open_items(
            data, None, out, skip_broken=skip_broken, progress=progress, options={}
        )
    shape = convert_regions(
        dataset,
        regions,
        out,
        boxes=boxes,
        width=width,
        ids=ids,
        dtype="float32" if float32 else "float16",
        show=progress_bar,
    )
    _tell_features(shape, out)


def _tell_features(shape: tuple[int, ...], out: Path) -> None:
    console.print(
        f"features of shape {list(shape)} are in {typed(out)}: train with --set "
        f"{typed(f'data.features={out}')}",
        highlight=False,
        markup=False,
        soft_wrap=True,
    )
