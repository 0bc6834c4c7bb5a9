"""A local Ray of two workers writes the shards that `gradspace embed --shards` writes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from models.tiny_dual import clip

from gradspace.indexes.fill import embed_shards

ALONE = ("unshare", "--net", "--map-root-user")


@pytest.mark.slow
def test_two_actors_write_the_same_shards(tmp_path: Path) -> None:
    pytest.importorskip("ray", reason="needs the extra ray")
    if subprocess.run([*ALONE, "true"], capture_output=True, check=False).returncode:
        pytest.skip("a network of its own cannot be made here")
    model, captions = clip(tmp_path / "clip"), tmp_path / "captions.txt"
    captions.write_text("\n".join(f"{number} red balls above a cube" for number in range(600)))
    script = Path(__file__).with_name("with_ray.py")
    command = [*ALONE, sys.executable, str(script), str(model), str(captions)]
    done = subprocess.run(
        [*command, str(tmp_path / "ray")], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    assert done.stdout.splitlines()[-1] == "3 600"
    embed_shards(model, captions, out=tmp_path / "plain", shards=3, device="cpu")
    names = {path.name for path in (tmp_path / "plain").iterdir()}
    assert names == {path.name for path in (tmp_path / "ray").iterdir()}
    for name in names:
        assert (tmp_path / "ray" / name).read_bytes() == (tmp_path / "plain" / name).read_bytes()
