"""`gradspace data`: inspect and check datasets, and compute features."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from gradspace.cli.options import AsJson, Device
from gradspace.cli.shared import console, progress_bar
from gradspace.data.check import check_dataset
from gradspace.data.dataset import Dataset
from gradspace.data.open import open_dataset, open_items
from gradspace.data.regions.convert import convert_regions
from gradspace.data.scenes import Scenes, contact_sheet
from gradspace.files import write_atomically
from gradspace.models.features import extract_features
from gradspace.processes import choose_device
from gradspace.runs.toml_files import apply_override
from gradspace.wording import typed

app = typer.Typer(help="Inspect and check datasets, and compute features.")


def add_to(around: typer.Typer) -> None:
    around.add_typer(app, name="data", no_args_is_help=True)


Source = Annotated[str, typer.Argument(metavar="SOURCE", help='A path to captions, or "scenes".')]
ImagePath = Annotated[
    Path | None, typer.Option(help="Image folder or zip, if it is not beside the captions.")
]
DataOptions = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="data.KEY=VALUE",
        help="Set an option of the dataset, as in a recipe: data.caption=text.",
    ),
]
SkipBroken = Annotated[bool, typer.Option("--skip-broken", help="Leave out items with problems.")]


def _data_options(overrides: list[str] | None) -> dict[str, Any]:
    raw: dict[str, Any] = {}
    for override in overrides or ():
        apply_override(raw, override)
    if others := sorted(raw.keys() - {"data"}):
        raise ValueError(f"--set takes data.KEY=VALUE here, got a key of {others[0]!r}")
    options: dict[str, Any] = raw.get("data", {})
    return options


def _open(
    source: str, images: Path | None, skip_broken: bool, overrides: list[str] | None
) -> Dataset:
    options = _data_options(overrides)
    with progress_bar("reading data") as progress:
        return open_dataset(
            source, images=images, skip_broken=skip_broken, progress=progress, **options
        )


@app.command()
def check(
    source: Source,
    images: ImagePath = None,
    features: Annotated[Path | None, typer.Option(help="Features to check as well.")] = None,
    overrides: DataOptions = None,
    as_json: AsJson = False,
) -> None:
    """Report the contents and all problems of a dataset; exit with 1 if there are any."""
    with progress_bar("decoding images") as progress:
        report = check_dataset(
            source,
            images=images,
            features=features,
            progress=progress,
            **_data_options(overrides),
        )
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
    num: Annotated[int, typer.Option(min=1, help="Number of scenes to show.")] = 12,
    seed: Annotated[int, typer.Option(min=0, help="Seed of the scenes.")] = 0,
    out: Annotated[
        Path | None, typer.Option(help="File for --show; scenes.png by default.")
    ] = None,
) -> None:
    """Inspect the built-in dataset: its captions, and with --show its pictures."""
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
    out: Annotated[Path, typer.Option(help="Folder for the features; resumes where it stopped.")],
    grid: Annotated[
        bool, typer.Option("--grid", help="All positions of the feature map, not one vector.")
    ] = False,
    images: ImagePath = None,
    size: Annotated[
        int | None,
        typer.Option(min=1, help="Side of the images in pixels; by default the backbone's own."),
    ] = None,
    whole: Annotated[
        bool,
        typer.Option(
            "--whole", help="Squeeze the whole picture into a square instead of cropping."
        ),
    ] = False,
    batch_size: Annotated[int, typer.Option(min=1, help="Pictures in one go.")] = 32,
    num_workers: Annotated[
        int, typer.Option(min=0, help="Number of processes that decode images.")
    ] = 2,
    overrides: DataOptions = None,
    skip_broken: SkipBroken = False,
    device: Device = None,
) -> None:
    """Run a backbone over a dataset once and store its output, for training without it.

    Images are identified by name: delete the folder when a picture has changed.
    """
    dataset = _open(source, images, skip_broken, overrides)
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
        typer.Argument(
            metavar="FEATURES",
            help="Features of a detector: .tsv (or a glob of them), .hdf5, or an LMDB.",
        ),
    ],
    data: Annotated[str, typer.Option(help="The dataset with the images of these features.")],
    out: Annotated[Path, typer.Option(help="Folder for the features; resumes where it stopped.")],
    boxes: Annotated[
        int | None,
        typer.Option(min=1, help="Regions to keep of each image, if their numbers differ."),
    ] = None,
    width: Annotated[
        int | None, typer.Option(min=1, help="Numbers per region, for an LMDB of plain numbers.")
    ] = None,
    ids: Annotated[
        Path | None, typer.Option(help="Image of every row, for an HDF5 file without ids.")
    ] = None,
    float32: Annotated[
        bool, typer.Option("--float32", help="Keep full precision, in twice the space.")
    ] = False,
    overrides: DataOptions = None,
    skip_broken: SkipBroken = False,
) -> None:
    """Convert region features once, to a folder that training reads row by row."""
    if not out.is_file():  # which is rejected later, when the contents of the folder are known
        out.mkdir(parents=True, exist_ok=True)
    with progress_bar("reading data") as progress:
        dataset = open_items(
            data,
            None,
            out,
            skip_broken=skip_broken,
            progress=progress,
            options=_data_options(overrides),
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
