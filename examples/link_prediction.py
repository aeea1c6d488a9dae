"""Whose brother is Ivan? A link predictor on generated families, trained for a moment and asked by name."""

import tempfile
from pathlib import Path

from magna.config.schema import load_recipe
from magna.training.train import train
from magna.use.links import Query, predict_links

config = load_recipe("families").with_values(["train.epochs=2", "model.num_layers=1", "model.K=2"])
with tempfile.TemporaryDirectory() as folder:
    result = train(config, run_dir=Path(folder) / "run", device="cpu")
    print(f"test MRR after two epochs: {result['mean']['test']['mrr']:.3f}")
    predictions = predict_links(Path(folder) / "run", [Query("ivan-121", "brother_of", None)], top=3, device="cpu")
    for answer in predictions.answers[0]:
        print(f"{answer.entity}: {100 * answer.probability:.1f} %{' (known)' if answer.known else ''}")
