"""Models as files: config.json and model.safetensors."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Self

import safetensors
import safetensors.torch
import torch
from torch import nn

from magna.config.atomic_files import write_whole
from magna.errors import ArgumentError, DataError, nearest_path
from magna.nn.scaling import FeatureScaling
from magna.nn.sparse import as_dense

_CONFIG, _WEIGHTS = "config.json", "model.safetensors"
_SCALING = "feature_scaling"  # in the files
_TIMEOUT_SECONDS = 5.0  # for the first answer of the hub


class Saved(nn.Module):
    """Base of models with `save_pretrained(folder)` and `from_pretrained(folder)`.

    `config` holds every argument of the constructor: `type(model)(**model.config)` is a model of the same form. With
    a :class:`magna.nn.scaling.FeatureScaling` attached, a model takes raw features.
    """

    config: dict[str, Any]

    def save_pretrained(self, folder: str | Path, scaling: FeatureScaling | None = None) -> None:
        """Write config.json and model.safetensors into a folder, made where it is new.

        Args:
            folder: the folder.
            scaling: of the features that the model was trained on; the saved model has it attached.
        """
        config, state = self.config, self.state_dict()
        if (scaling := scaling or self._modules.get(_SCALING)) is not None:  # type: ignore[assignment]
            config = config | {_SCALING: scaling.config}
            state |= {f"{_SCALING}.{name}": value for name, value in scaling.state_dict().items()}
        # Copies, as tensors that share their memory cannot be stored.
        weights = {
            name: value.detach().cpu().clone(memory_format=torch.contiguous_format) for name, value in state.items()
        }
        write_whole(Path(folder) / _WEIGHTS, safetensors.torch.save(weights, {"format": "pt"}))
        write_whole(Path(folder) / _CONFIG, json.dumps(config, sort_keys=True, indent=2).encode())

    def attach_scaling(self, scaling: FeatureScaling) -> None:
        """Scale the features of every call from now on."""
        self.detach_scaling()
        self.add_module(_SCALING, scaling)
        self._scaling_hook = self.register_forward_pre_hook(_scale_features, with_kwargs=True)

    def detach_scaling(self) -> FeatureScaling | None:
        """Take the scaling off, so that the model takes scaled features again; None if there is none."""
        scaling = self._modules.pop(_SCALING, None)
        if scaling is not None:
            self._scaling_hook.remove()
        assert scaling is None or isinstance(scaling, FeatureScaling)
        return scaling

    @classmethod
    def from_pretrained(cls, folder: str | Path, *, revision: str | None = None, **changes: Any) -> Self:
        """A model from its files, in evaluation mode; with the scaling of its training, it takes raw features.

        Args:
            folder: the folder, or with huggingface_hub installed the name of a model on the Hugging Face Hub.
            revision: of the model on the hub.
            changes: constructor arguments in place of those in config.json, such as `backend`.
        """
        path = _local(folder, revision)
        for name in (_CONFIG, _WEIGHTS):
            if not (path / name).is_file():
                raise ArgumentError("folder", str(folder), f"a folder with {_CONFIG} and {_WEIGHTS}", _nearest(path))
        try:
            config = json.loads((path / _CONFIG).read_text(encoding="utf-8"))
            weights = safetensors.torch.load_file(path / _WEIGHTS)
        except ValueError as error:
            raise DataError(path / _CONFIG, f"it is not JSON ({error})") from error
        except safetensors.SafetensorError as error:
            raise DataError(path / _WEIGHTS, f"it is damaged ({error})") from error
        if not isinstance(config, dict):
            raise DataError(path / _CONFIG, "it holds no JSON object")
        scaling = config.pop(_SCALING, None)
        model = cls(**config | changes)
        if scaling is not None:
            model.attach_scaling(FeatureScaling(**scaling))
        model.load_state_dict(weights)
        return model.eval()


def _scale_features(model: nn.Module, args: tuple[Any, ...], named: dict[str, Any]) -> tuple[Any, dict[str, Any]]:
    """The arguments of a call, its features scaled."""
    scaling = model.get_submodule(_SCALING)
    if not args:
        return args, named | {"x": scaling(as_dense(named["x"]))}
    return (scaling(as_dense(args[0])), *args[1:]), named


def _nearest(path: Path) -> str:
    """A saved model at a similar path, or nothing."""
    if near := nearest_path(path, _CONFIG):
        return near
    parent = nearest_path(path.parent, f"{path.name}/{_CONFIG}")
    return f"{parent}/{path.name}" if parent else ""


def _local(folder: str | Path, revision: str | None) -> Path:
    """The folder with the files, downloaded if a model on the hub is named."""
    path = Path(folder)
    parts = str(folder).split("/")
    # "user/name" is a model on the hub, unless there is a folder "user": then the path was misspelt.
    if path.is_dir() or isinstance(folder, Path) or len(parts) != 2 or not all(parts) or path.parent.exists():
        return path
    try:
        from huggingface_hub import snapshot_download
    except ImportError:
        return path
    options: dict[str, Any] = {"revision": revision, "etag_timeout": _TIMEOUT_SECONDS}
    try:
        return Path(snapshot_download(str(folder), allow_patterns=[_CONFIG, _WEIGHTS], **options))
    except (OSError, ValueError) as error:  # the hub's errors are among them
        allowed = f"a folder with {_CONFIG} and {_WEIGHTS}, or a model on the Hugging Face Hub"
        raise ArgumentError(
            "folder", str(folder), allowed, f"another name; the hub says: {str(error).splitlines()[0]}"
        ) from error
