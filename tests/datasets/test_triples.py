"""Knowledge graphs from TSV files."""

from __future__ import annotations

import gzip
from pathlib import Path

import pytest

from magna.datasets import files_of, load_triples, present


def _write(folder: Path, **splits: str) -> None:
    for name, text in splits.items():
        (folder / f"{name}.txt").write_bytes(text.encode())


def test_names_stay_strings_and_line_ends_go(tmp_path: Path) -> None:
    _write(tmp_path, train="001\tr\t1\r\n1\ts\tü x\r\n", valid="1\tr\t001\n", test="new\tr\t1")
    data = load_triples(tmp_path)
    assert data.entities == ("001", "1", "new", "ü x")
    assert data.relations == ("r", "s")
    assert data.train.tolist() == [[0, 0, 1], [1, 1, 3]]
    assert data.valid.tolist() == [[1, 0, 0]]
    # An entity that training never sees is in the vocabulary.
    assert data.test.tolist() == [[2, 0, 1]]


def test_plain_and_gzip_give_the_same(tmp_path: Path) -> None:
    _write(tmp_path, train="a\tr\tb\n", valid="", test="b\tr\ta\n")
    plain = load_triples(tmp_path)
    for file in list(tmp_path.iterdir()):
        (tmp_path / f"{file.name}.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    packed = load_triples(tmp_path)
    assert packed.entities == plain.entities
    assert packed.train.tolist() == plain.train.tolist()
    assert packed.valid.shape == (0, 3)


def test_a_wrong_line_is_named(tmp_path: Path) -> None:
    _write(tmp_path, train="a\tr\tb\na r b\n", valid="", test="")
    with pytest.raises(ValueError, match=r"train\.txt line 2 has 1 tab-separated columns"):
        load_triples(tmp_path)


def test_a_missing_file_is_named(tmp_path: Path) -> None:
    _write(tmp_path, train="a\tr\tb\n")
    with pytest.raises(ValueError, match="has no valid file"):
        load_triples(tmp_path)


@pytest.mark.parametrize(
    ("name", "entities", "relations", "sizes", "seen"),
    [
        ("wn18rr", 40_943, 11, (86_835, 3_034, 3_134), 40_559),
        ("fb15k-237", 14_541, 237, (272_115, 17_535, 20_466), 14_505),
    ],
)
def test_counts(name: str, entities: int, relations: int, sizes: tuple[int, ...], seen: int) -> None:
    if any(present(path) is None for path in files_of(name)):
        pytest.skip(f"{name} is not in the data folder (MAGNA_DATA_DIR)")
    data = load_triples(name)
    assert (data.num_entities, data.num_relations) == (entities, relations)
    assert (len(data.train), len(data.valid), len(data.test)) == sizes
    assert data.train[:, [0, 2]].unique().numel() == seen
    assert not any("\r" in entity for entity in data.entities)
