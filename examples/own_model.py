"""A model of your own that recipes can name: one class, the dataclass of its options, and a recipe."""

import tempfile
from dataclasses import dataclass
from pathlib import Path

from torch import Tensor, nn

import magna
from magna.config.options import Options, option
from magna.config.registry import node_model
from magna.nn.hub import Saved


@dataclass(frozen=True, kw_only=True)
class TwoHopOptions(Options):
    hidden_channels: int = option(64, "Width of the layer.", low=1)


@node_model("two-hop", TwoHopOptions)
class TwoHop(Saved):
    """A layer of two hops and a linear classifier; `train(data, model=module)` takes any module without a recipe."""

    def __init__(self, in_channels: int, out_channels: int, hidden_channels: int) -> None:
        super().__init__()
        self.config = {"in_channels": in_channels, "out_channels": out_channels, "hidden_channels": hidden_channels}
        self.in_channels, self.out_channels = in_channels, out_channels
        self.conv = magna.MAGNAConv(in_channels, hidden_channels, heads=4, K=2)
        self.classifier = nn.Linear(hidden_channels, out_channels)

    def forward(self, x: Tensor, edge_index: Tensor) -> Tensor:
        logits: Tensor = self.classifier(self.conv(x, edge_index).relu())
        return logits


recipe = Path(tempfile.mkdtemp()) / "two-hop.toml"
recipe.write_text('[data]\nname = "digits"\n[model]\nname = "two-hop"\nhidden_channels = 32\n[train]\nepochs = 20\n')
run = magna.train(recipe, run_dir=recipe.parent / "run")["runs"][0]
again = magna.evaluate(run["run_dir"])["metrics"]["accuracy"]
print(f"test accuracy: {run['test']['accuracy']:.3f}, from the run folder: {again:.3f}")
