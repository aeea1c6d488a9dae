"""Features from the graph alone."""

from pathlib import Path

import torch

import magna
from magna.config.tables import NodeDataOptions
from magna.data import load_node_data
from magna.data.structure import DEGREE_BINS, POSITIONS, structural_features


def _rings(count: int, size: int) -> torch.Tensor:
    """Separate rings, both directions of each edge."""
    node = torch.arange(count * size)
    after = node // size * size + (node + 1) % size
    return torch.cat([torch.stack([node, after]), torch.stack([after, node])], dim=1)


def test_positions_of_connected_nodes_are_alike() -> None:
    x = structural_features(_rings(4, 10), 40)[:, DEGREE_BINS + 1 :]
    alike = x @ x.T
    ring = torch.arange(40) // 10
    same = ring[:, None] == ring
    assert x.size(1) == POSITIONS and alike[same].mean() > alike[~same].mean() + 1


def test_degrees_are_one_hot_and_isolated_nodes_have_one() -> None:
    x = structural_features(torch.tensor([[0, 1, 2], [1, 0, 0]]), 4)
    assert torch.equal(x[:, :DEGREE_BINS].sum(1), torch.ones(4)) and x.isfinite().all()
    assert not torch.equal(x[0, :DEGREE_BINS], x[3, :DEGREE_BINS])


def test_a_folder_without_features_is_trained_with_a_note(tmp_path: Path) -> None:
    folder = tmp_path / "plain"
    folder.mkdir()
    rows = [f"n{node},{'ab'[node // 20]}" for node in range(40)]
    (folder / "nodes.csv").write_text("\n".join(["id,label", *rows]) + "\n")
    edges = [f"n{node},n{node // 20 * 20 + (node + step) % 20}" for node in range(40) for step in (1, 3)]
    (folder / "edges.csv").write_text("\n".join(["source,target", *edges]) + "\n")
    data = load_node_data(NodeDataOptions(name=str(folder), structural_features=True))
    assert data.x is not None and any("no features" in note for note in data.notes)
    lines: list[str] = []
    result = magna.train(folder, steps=1, run_dir=tmp_path / "run", say=lines.append)
    assert any("no features" in line for line in lines) and result["runs"][0]["test"] is not None
    assert magna.evaluate(tmp_path / "run")["metrics"]["accuracy"] == result["runs"][0]["test"]["accuracy"]
