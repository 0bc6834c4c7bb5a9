"""Arguments and options that several commands share, or that have long help."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from gradspace.cli import recipe_keys

AsJson = Annotated[bool, typer.Option("--json", help="Print JSON for machines.")]
Device = Annotated[
    str | None, typer.Option(help="cpu or cuda; by default the GPU if there is one.")
]
Data = Annotated[
    str | None,
    typer.Option(help="A dataset other than the one the run was trained on; a name or a path."),
]
FeaturesOption = Annotated[
    Path | None,
    typer.Option(help="Features of data other than the run's, or their new location."),
]
OtherSplit = Annotated[
    str | None, typer.Option("--split", help="train, dev or test; test by default.")
]
SplitName = Annotated[str, typer.Option("--split", help="train, dev or test.")]
Runs = Annotated[
    list[Path],
    typer.Argument(
        metavar="RUN",
        help="Trained runs by folder, or pretrained CLIP, SigLIP ... by folder or hub name.",
    ),
]
Model = Annotated[
    Path,
    typer.Argument(
        metavar="MODEL", help="CLIP, SigLIP ... by its folder or hub name, or the folder of a run."
    ),
]

# --- train --------------------------------------------------------------------------------------

RecipeFile = Annotated[
    Path | None,
    typer.Argument(metavar="RECIPE", help="A TOML file, such as the recipe.toml of a run."),
]
ModelName = Annotated[
    str | None, typer.Option(help=f"Short for --set model.name=...: {recipe_keys.MODELS}.")
]
DataName = Annotated[str | None, typer.Option(help="Short for --set data.source=...")]
ObjectiveName = Annotated[
    str | None, typer.Option(help=f"Short for --set objective.name=...: {recipe_keys.OBJECTIVES}.")
]
BatchOption = Annotated[
    int | None, typer.Option(min=1, help="Short for --set training.batch_size=...")
]
Chunk = Annotated[
    int | None,
    typer.Option(
        min=1, help="Short for --set training.chunk=...: rows of a batch in memory at once."
    ),
]
Seed = Annotated[int | None, typer.Option(min=0, help="Short for --set seed=...")]
OfflineNegatives = Annotated[
    Path | None,
    typer.Option(
        metavar="LISTS",
        help="Short for --set offline.lists=...: train on lists of `gradspace mine`.",
    ),
]
Init = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="Short for --set init=...: start from its best weights."),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="TABLE.KEY=VALUE",
        help="Change any key of the recipe; all are listed below.",
    ),
]
RunFolder = Annotated[
    Path | None, typer.Option(help="Folder of the run; runs/MODEL-OBJECTIVE-SEED by default.")
]
Resume = Annotated[
    Path | None,
    typer.Option(metavar="RUN", help="Resume a run that was stopped."),
]
NumProcesses = Annotated[
    int | None,
    typer.Option("--processes", min=1, help="Processes that share every batch, one per GPU."),
]

# --- evaluate and mine --------------------------------------------------------------------------

Folds = Annotated[int, typer.Option(min=1, help="Number of parts to average over (COCO 1K: 5).")]
Eccv = Annotated[
    bool, typer.Option("--eccv", help="Add the metrics ECCV Caption and CxC, for COCO's test set.")
]
Propose = Annotated[
    Path | None,
    typer.Option(
        metavar="RUN", help="A run that embeds and proposes candidates; RUN scores the pairs."
    ),
]
TopOption = Annotated[
    int | None, typer.Option(min=1, help="Candidates per query by --propose; 100 by default.")
]
Rerank = Annotated[
    int | None,
    typer.Option(min=1, help="Re-rank the run's own top N; the run must embed and score pairs."),
]
ProposalWeight = Annotated[
    float | None,
    typer.Option(help="Weight of the embeddings' scores in --rerank; fusion: 1 / temperature."),
]
TopTexts = Annotated[int, typer.Option(min=1, help="Captions in the list of an image.")]
TopImages = Annotated[int, typer.Option(min=1, help="Images in the list of a caption.")]
ListsFile = Annotated[
    Path | None, typer.Option(help="File of the lists; by default lists.safetensors in the run.")
]
Approximately = Annotated[
    bool, typer.Option("--approximate", help="Use a faiss index, for huge collections.")
]
Audit = Annotated[
    bool,
    typer.Option(
        "--audit",
        help="Search the lists for false negatives, and write a page to judge them by eye.",
    ),
]
Proposals = Annotated[
    int | None,
    typer.Option(min=1, help="Candidates of --propose per listed entry; 2 by default."),
]

# --- embed --------------------------------------------------------------------------------------

Embedder = Annotated[
    Path,
    typer.Argument(
        metavar="RUN",
        help="A trained run by folder, or pretrained CLIP, SigLIP ... by folder or hub name.",
    ),
]
EmbeddedOption = Annotated[
    Path, typer.Option(help="A safetensors file to write; with --shards a folder to fill.")
]
OwnTexts = Annotated[
    list[str] | None, typer.Option("--text", help="A sentence of your own; repeat for more.")
]
OwnImages = Annotated[
    list[Path] | None, typer.Option("--image", help="A picture of your own; repeat for more.")
]
ShardsOption = Annotated[
    int | None,
    typer.Option(
        min=1,
        help="Fill a folder of this many parts, together with other processes and machines.",
    ),
]

# --- compare ------------------------------------------------------------------------------------

ComparisonFile = Annotated[
    Path | None,
    typer.Argument(metavar="RECIPE", help="A TOML file, or the name of a built-in comparison."),
]
ListComparisons = Annotated[
    bool, typer.Option("--list", help="Show the built-in comparisons, and train nothing.")
]
OtherData = Annotated[
    str | None, typer.Option(help='Run the same grid on this data instead, or on "scenes".')
]
Small = Annotated[
    bool | None,
    typer.Option(
        "--small/--full",
        help="Narrow models, few epochs: minutes on two cores. The default on scenes.",
    ),
]
BackboneName = Annotated[
    str | None,
    typer.Option(
        help="For --data without features: the vision model, by folder or hub name, that "
        "computes them once."
    ),
]
OnlyOption = Annotated[
    list[str] | None,
    typer.Option(
        metavar="AXIS=LABEL",
        help="Run only a part of the grid, such as model=VSRN or seed=0; repeat for more.",
    ),
]
Check = Annotated[
    bool,
    typer.Option("--check", help="List what is needed and what is missing, and train nothing."),
]
SeedsOption = Annotated[int | None, typer.Option(min=1, help="Runs per cell of the table.")]
Changes = Annotated[
    list[str] | None,
    typer.Option(
        "--set",
        metavar="TABLE.KEY=VALUE",
        help="Change a key of every run: `gradspace train --help` has all keys.",
    ),
]
ComparisonFolder = Annotated[
    Path | None, typer.Option(help="Folder of the comparison; comparisons/RECIPE by default.")
]
JobsOption = Annotated[
    int | None, typer.Option(min=1, help="Runs at a time; by default as many as fit.")
]

# --- index and search ---------------------------------------------------------------------------

IndexSource = Annotated[
    str | None,
    typer.Argument(
        metavar="SOURCE",
        help="Folder of photos, text file with one caption per line, or a dataset; by default the "
        "dataset of the run.",
    ),
]
IndexFolder = Annotated[Path, typer.Option(help="Folder of the index, to create or to update.")]
IndexSplit = Annotated[str | None, typer.Option(help="The split of a dataset; test by default.")]
Metadata = Annotated[
    Path | None,
    typer.Option(help="CSV with a column path and others, for photos: see `search --where`."),
]
EmbeddingsOption = Annotated[
    Path | None,
    typer.Option(
        metavar="FOLDER", help="Folder of `gradspace embed --shards`, instead of a source."
    ),
]
IndexName = Annotated[
    str | None, typer.Option(help="Name of the index; by default that of its folder.")
]
EngineAddress = Annotated[
    str | None, typer.Option(help="Address of a database for the vectors; by default the folder.")
]
NumWorkers = Annotated[
    int | None, typer.Option(min=0, help="Processes that decode photos; by default, by cores.")
]
