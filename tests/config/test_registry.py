"""Registry of models: decorators, look-ups and refusals."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Iterator

import pytest

from magna.config import registry
from magna.config.options import Options
from magna.errors import ArgumentError, UnknownName


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    before = {task: dict(models) for task, models in registry._MODELS.items()}
    yield
    for task, models in before.items():
        registry._MODELS[task].clear()
        registry._MODELS[task].update(models)


def test_a_model_from_outside_the_package_is_looked_up_like_any_other() -> None:
    @registry.node_model("mean", Options)
    class Mean:
        pass

    mean = registry.find_model("node_classification", "mean")
    assert mean.kind is Mean and mean.settings.in_recipes() == ["members"]
    assert "mean" in registry.model_names("node_classification")
    assert "mean" not in registry.model_names("link_prediction")
    with pytest.raises(UnknownName, match=r"model.name is 'men'; did you mean 'mean'\?"):
        registry.find_model("node_classification", "men")
    with pytest.raises(UnknownName, match=r"try task.name=node_classification"):
        registry.find_model("link_prediction", "mean")


def test_a_name_belongs_to_one_class() -> None:
    @registry.link_model("mean", Options)
    class Mean:
        pass

    assert registry.link_model("mean", Options)(Mean) is Mean  # as when its module is loaded anew
    with pytest.raises(ArgumentError, match=r"it belongs to tests\.config\.test_registry\..*Mean"):
        registry.link_model("mean", Options)(type("Other", (), {}))


def test_the_registry_needs_no_torch() -> None:
    code = "import sys, magna.config.registry; sys.exit('torch' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == 0
