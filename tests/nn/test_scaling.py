"""Scaling of features: equal to scikit-learn, part of saved models, and the numbers of the data preparation."""

from __future__ import annotations

from pathlib import Path
from typing import get_args

import numpy as np
import pytest
import torch

from magna import MAGNA
from magna.nn.scaling import KINDS, FeatureScaling, ScalingKind
from tests.support.data import node_graph

COUNTS = torch.poisson(torch.full((40, 12), 0.6), generator=torch.Generator().manual_seed(1))
EDGES = torch.tensor([[0, 1, 2], [1, 2, 0]])


def _compared(ours: torch.Tensor, theirs: object) -> None:
    torch.testing.assert_close(ours.double(), torch.from_numpy(np.asarray(theirs)).double(), rtol=1e-5, atol=1e-5)


def test_the_kinds_are_those_of_the_type() -> None:
    assert get_args(ScalingKind) == KINDS
    with pytest.raises(ValueError, match="kind is 'column'; did you mean 'columns'"):
        FeatureScaling("column", 3)  # type: ignore[arg-type]


def test_tfidf_is_that_of_scikit_learn() -> None:
    text = pytest.importorskip("sklearn.feature_extraction.text")
    theirs = text.TfidfTransformer().fit(COUNTS[:30].numpy())
    ours = FeatureScaling("tfidf", 12).fit(COUNTS[:30])
    _compared(ours(COUNTS), theirs.transform(COUNTS.numpy()).toarray())
    assert ours(torch.zeros(1, 12)).tolist() == [[0.0] * 12]


@pytest.mark.parametrize("columns", [12, 1100])
def test_principal_components_are_those_of_scikit_learn(columns: int) -> None:
    """Up to 1,024 columns they are exact; above, the spectrum of this matrix falls fast, as that of words does."""
    decomposition = pytest.importorskip("sklearn.decomposition")
    draw = torch.Generator().manual_seed(2)
    x = torch.randn(60, columns, generator=draw) @ torch.diag(0.8 ** torch.arange(columns).float()) + 3
    theirs = decomposition.PCA(5, svd_solver="full").fit(x[:50].double().numpy())
    ours = FeatureScaling("pca", columns, 5).fit(x[:50])
    signs = np.sign((ours.second.numpy() * theirs.components_.T).sum(0))
    _compared(ours(x), theirs.transform(x.double().numpy()) * signs)
    assert (ours.second.gather(0, ours.second.abs().argmax(0, keepdim=True)) > 0).all()


def test_columns_are_those_of_scikit_learn() -> None:
    preprocessing = pytest.importorskip("sklearn.preprocessing")
    x = torch.cat([COUNTS * 1e3, torch.full((40, 1), 0.1)], 1)
    theirs = preprocessing.StandardScaler().fit(x[:30].double().numpy())
    _compared(FeatureScaling("columns", 13).fit(x[:30])(x)[:, :12], theirs.transform(x.double().numpy())[:, :12])
    assert (FeatureScaling("columns", 13).fit(x)(x)[:, 12] == 0).all()


def test_rows_and_columns_are_the_numbers_of_the_data_preparation() -> None:
    data = node_graph([], [0] * 40, x=COUNTS)
    scaled = data.with_standardised_features()
    assert torch.equal(FeatureScaling("rows", 12)(COUNTS), data.with_row_normalised_features().x)  # type: ignore[arg-type]
    assert torch.equal(FeatureScaling("columns", 12).fit(COUNTS)(COUNTS), scaled.x)  # type: ignore[arg-type]
    numbers = scaled.schema.feature_shift, scaled.schema.feature_scale
    assert torch.equal(FeatureScaling("columns", 12).set(*numbers)(COUNTS), scaled.x)  # type: ignore[arg-type]


@pytest.mark.parametrize("kind", KINDS)
def test_a_saved_model_scales_by_itself(kind: ScalingKind, tmp_path: Path) -> None:
    scaling = FeatureScaling(kind, 12, 5).fit(COUNTS)
    model = MAGNA(scaling.out_channels, 8, 1, 3, heads=2).eval()
    expected = model(scaling(COUNTS), EDGES)
    model.save_pretrained(tmp_path / "model", scaling)
    loaded = MAGNA.from_pretrained(tmp_path / "model")
    assert torch.equal(loaded(COUNTS, EDGES), expected) and torch.equal(loaded(x=COUNTS, edge_index=EDGES), expected)
    loaded.save_pretrained(tmp_path / "again")
    assert torch.equal(MAGNA.from_pretrained(tmp_path / "again")(COUNTS, EDGES), expected)
    taken = loaded.detach_scaling()
    assert taken is not None and taken.config == scaling.config and loaded.detach_scaling() is None
    assert torch.equal(loaded(scaling(COUNTS), EDGES), expected)
    assert MAGNA.from_pretrained(tmp_path / "model").config == model.config


def test_other_widths_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match=r"allowed: \[N, 12\], the raw features of training"):
        FeatureScaling("rows", 12)(COUNTS[:, :3])
    with pytest.raises(ValueError, match="components is 12; allowed: at most the 4 rows"):
        FeatureScaling("pca", 12, 12).fit(COUNTS[:4])
    assert repr(FeatureScaling("pca", 12, 5)) == "FeatureScaling(pca, 12 → 5)"


def test_a_scaled_model_exports_and_compiles_to_itself() -> None:
    scaling = FeatureScaling("columns", 12).fit(COUNTS)
    model = MAGNA(12, 8, 1, 3, heads=2).eval()
    model.attach_scaling(scaling)
    edges = torch.arange(40).repeat(2, 1)
    with torch.no_grad():
        expected = model(COUNTS, edges)
        program = torch.export.export(model, (COUNTS, edges))
    torch.testing.assert_close(program.module()(COUNTS, edges), expected)
