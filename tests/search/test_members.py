"""Members of the portfolio as data."""

import pytest

from magna.config.schema import Config
from magna.config.tables import NodeDataOptions
from magna.errors import ArgumentError
from magna.search.members import load_members, parse_members


def test_every_member_is_a_recipe_for_every_kind_of_features() -> None:
    members = load_members()
    assert len({member.name for member in members}) == len(members) >= 8
    assert members[0].tables["model"]["name"] == "mlp", "the simplest member reads no edges"
    for member in members:
        for kind in ("none", "one-hot", "counts", "dense", "mixed"):
            config = member.config(NodeDataOptions(name="digits"), kind, member.name, 3)
            assert config.train.seed == 3
            assert isinstance(config.data, NodeDataOptions)
            scaling = member.scaling_for(kind)
            assert config.data.standardise_features == (scaling == "columns")
            assert config.data.normalise_features == (scaling == "rows")
            assert Config.from_dict(config.to_dict()) == config, "a run folder repeats it"


def test_some_members_are_of_this_package_and_some_are_not() -> None:
    names = {member.tables["model"]["name"] for member in load_members()}
    assert {"mlp", "magna"} < names and names & {"gcn", "gat", "appnp"}


def test_a_wrong_scaling_is_refused() -> None:
    with pytest.raises(ArgumentError, match="scaling of member odd is 'third'; allowed: 'first', 'second', 'raw'"):
        parse_members([{"name": "odd", "scaling": "third", "model": {"name": "mlp"}}])
