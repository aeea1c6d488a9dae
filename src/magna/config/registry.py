"""Models and decoders by the names that recipes give them, models with the options that they take.

A model registers by a decorator, in this package or in any other module that is imported::

    @dataclass(frozen=True, kw_only=True)
    class MeanOptions(Options):
        num_layers: int = option(2, "Number of layers.", low=1)

    @node_model("mean", MeanOptions)
    class Mean(nn.Module): ...

Once that module is imported again, runs and saved models with these names can be read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, make_dataclass
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, ClassVar, NamedTuple, TypeVar

from magna.config.options import Options, option
from magna.errors import ArgumentError, UnknownName

_Class = TypeVar("_Class", bound=type[Any])

NODE_TASK, LINK_TASK = "node_classification", "link_prediction"


class ModelSettings(Options):
    """Base of the settings in `[model]`: the options of a model, with its name."""

    name: ClassVar[str]
    task: ClassVar[str]

    if TYPE_CHECKING:  # the fields of a registered model are known when its class is made

        def __getattr__(self, name: str) -> Any: ...


@dataclass(frozen=True, kw_only=True)
class NodeModelSettings(ModelSettings):
    """Base of the settings of a node model."""

    members: int = option(1, "Number of models in an ensemble, whose probabilities are averaged.", low=1, high=1024)


class Registration(NamedTuple):
    """A model that recipes can name."""

    kind: type[Any]  # its class
    settings: type[ModelSettings]  # its `[model]` table


_MODELS: dict[str, dict[str, Registration]] = {NODE_TASK: {}, LINK_TASK: {}}
_DECODERS: dict[str, type[Any]] = {}


def node_model(name: str, options: type[Options]) -> Callable[[_Class], _Class]:
    """Register a class as a model of node classification.

    It is built as `kind(in_channels=…, out_channels=…, **settings)` and called as `model(x, edge_index)`. Training adds
    `model.auxiliary_loss(scores, epoch, x, edge_index)` to its loss if the class has that method; `scores` are those of
    the same step.
    """
    return _register(NODE_TASK, name, options)


def link_model(name: str, options: type[Options]) -> Callable[[_Class], _Class]:
    """Register a class as a model of link prediction, built as `kind(num_entities=…, num_relations=…, **settings)`."""
    return _register(LINK_TASK, name, options)


def decoder(name: str) -> Callable[[_Class], _Class]:
    """Register a subclass of :class:`magna.nn.decoder.Decoder` for `model.decoder`."""

    def register(kind: _Class) -> _Class:
        _check_free(name, kind, _DECODERS.get(name))
        _DECODERS[name] = kind
        return kind

    return register


def decoder_names() -> list[str]:
    """Names of all decoders."""
    _load_models()
    return list(_DECODERS)


def find_decoder(name: str) -> type[Any]:
    """The class of a decoder."""
    if name not in decoder_names():
        raise UnknownName("model.decoder", name, decoder_names())
    return _DECODERS[name]


def find_model(task: str, name: str) -> Registration:
    """The model of a task that a recipe names."""
    _load_models()
    models = _MODELS[task]
    if name not in models:
        other = next((other for other in _MODELS if name in _MODELS[other]), None)
        hint = f"task.name={other} for {name!r}" if other else ""
        raise UnknownName("model.name", name, sorted(models), hint)
    return models[name]


def model_names(task: str) -> list[str]:
    """Names of all models of a task."""
    _load_models()
    return sorted(_MODELS[task])


def model_settings(task: str = NODE_TASK, name: str = "magna", **values: Any) -> Any:
    """The `[model]` table of a model with some values; unknown ones, and those that would do nothing, are refused."""
    return find_model(task, name).settings.from_flat(values)


def _register(task: str, name: str, options: type[Options]) -> Callable[[_Class], _Class]:
    def register(kind: _Class) -> _Class:
        known = _MODELS[task].get(name)
        _check_free(name, kind, known and known.kind)
        base = NodeModelSettings if task == NODE_TASK else ModelSettings
        bases = (base,) if options is Options else (options, base)
        names = {"name": name, "task": task}
        table = make_dataclass(options.__name__, [], bases=bases, frozen=True, kw_only=True, namespace=names)
        _MODELS[task][name] = Registration(kind, table)
        return kind

    return register


def _check_free(name: str, kind: type[Any], owner: type[Any] | None) -> None:
    if owner is not None and _address(owner) != _address(kind):
        raise ArgumentError("name", name, f"a name that is free; it belongs to {_address(owner)}")


def _address(kind: type[Any]) -> str:
    """Module and name of a class, which stay the same if its module is loaded anew."""
    return f"{kind.__module__}.{kind.__qualname__}"


@cache
def _load_models() -> None:
    """Import the modules of this package that define models, so that they register."""
    import pkgutil

    import_module("magna.nn")
    baselines = import_module("magna.baselines")
    for module in pkgutil.walk_packages(baselines.__path__, "magna.baselines."):
        import_module(module.name)
