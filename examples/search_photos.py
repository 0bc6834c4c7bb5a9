"""Search a folder of photos by sentence, and in a browser.

python examples/search_photos.py openai/clip-vit-base-patch32 PHOTOS "two dogs in the snow"
"""

from __future__ import annotations

import argparse
import subprocess
import sys
from pathlib import Path

import gradspace as gs


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("model", help="CLIP, SigLIP ...: a folder, or a name on the hub")
    parser.add_argument("photos", type=Path)
    parser.add_argument("sentence")
    parser.add_argument("--index", type=Path, default=Path("photos.index"))
    parser.add_argument("--serve", action="store_true", help="open the search page afterwards")
    arguments = parser.parse_args()

    made = gs.index(arguments.model, arguments.photos, out=arguments.index)
    print(f"{len(made)} photos are in {arguments.index}; a second call embeds only new ones")
    for hit in gs.search(arguments.index, arguments.sentence, top=5):
        print(f"{hit.score:.3f}  {hit.item.key}")
    if arguments.serve:
        subprocess.run([sys.executable, "-m", "gradspace", "serve", arguments.index, "--open"])


if __name__ == "__main__":
    main()
