"""Files of embeddings as users of sentence-transformers and transformers save them, given to `ldreg inspect`."""

import json
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import torch
from torch import Tensor

from ldreg.cli import main
from ldreg.evaluate.measure import measure


def write_parquet(path: Path, x: Tensor) -> None:
    pa = pytest.importorskip("pyarrow")
    import pyarrow.parquet as pq

    texts = [f"sentence {i}" for i in range(len(x))]
    pq.write_table(pa.table({"text": texts, "embedding": list(x.numpy())}), path)


def write_safetensors(path: Path, x: Tensor) -> None:
    from safetensors.torch import save_file

    save_file({"embeddings": x}, path)


SAVED: dict[str, Callable[[Path, Tensor], None]] = {
    "encode.npy": lambda path, x: np.save(path, x.numpy()),  # what model.encode returns
    "encode.pt": lambda path, x: torch.save(x, path),  # with convert_to_tensor=True
    "hidden.pt": lambda path, x: torch.save({"last_hidden_state_mean": x, "step": 3}, path),
    "half.npy": lambda path, x: np.save(path, x.half().numpy()),
    "x.safetensors": write_safetensors,
    "x.parquet": write_parquet,
}


@pytest.mark.parametrize("name", SAVED)
def test_inspect_takes_embeddings_as_they_are_saved(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str) -> None:
    monkeypatch.chdir(tmp_path)
    x = torch.nn.functional.normalize(torch.randn(90, 12, generator=torch.Generator().manual_seed(0)))
    SAVED[name](tmp_path / name, x)
    assert main(["inspect", name, "--k", "10", "--json", "report.json"]) == 0
    found = json.loads((tmp_path / "report.json").read_text())
    half = 1e-2 if name == "half.npy" else 1e-5
    assert found["mean"]["value"] == pytest.approx(measure(x, k=10)["lid"], rel=half)
