"""Fine-tune CLIP, SigLIP or a relative on your own photos, and keep it for plain transformers.

PHOTOS is a folder with captions.tsv (columns `image` and `caption`) beside its images.

    python examples/fine_tune_clip.py openai/clip-vit-base-patch32 PHOTOS --out clip-photos
"""

from __future__ import annotations

import argparse
from pathlib import Path

import gradspace as gs
from gradspace.runs.export import export_run


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="a folder, or a name on the hub")
    parser.add_argument("photos", type=Path)
    parser.add_argument("--out", type=Path, default=Path("clip-photos"))
    parser.add_argument("--objective", default="circle/sigmoid-ms")
    parser.add_argument("--epochs", type=int, default=3)
    parser.add_argument("--batch", type=int, default=64)
    arguments = parser.parse_args()

    before = gs.evaluate(arguments.model, arguments.photos)
    print(f"as it is:\n{before}")

    recipe = {
        "data": {"source": str(arguments.photos)},
        "model": {"name": "dual", "pretrained": str(arguments.model), "train": "last-2"},
        "objective": {"name": arguments.objective},
        "training": {"epochs": arguments.epochs, "batch_size": arguments.batch},
    }
    run = gs.train(recipe, out=arguments.out.with_name(f"{arguments.out.name}-run"))
    print(f"fine-tuned:\n{gs.evaluate(run.folder)}")

    export_run(run.folder, arguments.out)
    print(f"AutoModel.from_pretrained({str(arguments.out)!r}) loads it")


if __name__ == "__main__":
    main()
