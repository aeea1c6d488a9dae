"""Knowledge graphs from TSV files: what is read, what is refused, and names in both directions."""

from __future__ import annotations

import gzip
import time
from pathlib import Path

import pytest
import torch
from tests.support.data import named_triples, names_of, needs, write_texts

from magna.data import Triples, load_triples
from magna.data.triples import read_lines, without_header


def _read(folder: Path, train: str, valid: str = "", test: str = "") -> Triples:
    return load_triples(write_texts(folder, ".txt", train=train, valid=valid, test=test))


def test_names_stay_strings_and_line_ends_go(tmp_path: Path) -> None:
    data = _read(tmp_path, "001\tr\t1\r\n1\ts\tü x\r\n", "1\tr\t001\n", "new\tr\t1")
    assert data.entities == ("001", "1", "new", "ü x") and data.relations == ("r", "s")
    assert data.train.tolist() == [[0, 0, 1], [1, 1, 3]] and data.valid.tolist() == [[1, 0, 0]]
    # An entity that training never sees is in the vocabulary.
    assert data.test.tolist() == [[2, 0, 1]]
    assert data.notes == () and data.name == tmp_path.name


@pytest.mark.parametrize(
    ("text", "names"),
    [
        # A byte order mark is no part of a name; separators that only `splitlines` knows are.
        ("\ufeffa\tr\tb\u2028c\n\nd\tr \ta\x0b\n\n", [("a", "r", "b\u2028c"), ("d", "r ", "a\x0b")]),
        ("a\tr\tb\r\nc\tr\ta\r", [("a", "r", "b"), ("c", "r", "a")]),
        ("a\tr\tb\r\r\n\r\r\nc\tr\ta\r\r\n", [("a", "r", "b"), ("c", "r", "a")]),
        ("a\tr\tb\nc\tr\ta\n\r", [("a", "r", "b"), ("c", "r", "a")]),
    ],
)
def test_line_ends_are_no_part_ofnames_of(tmp_path: Path, text: str, names: list[tuple[str, str, str]]) -> None:
    assert names_of(_read(tmp_path, text), "train") == names


def test_plain_and_gzip_give_the_same(tmp_path: Path) -> None:
    plain = _read(tmp_path, "a\tr\tb\n", test="b\tr\ta\n")
    for file in list(tmp_path.iterdir()):
        (tmp_path / f"{file.stem}.tsv.gz").write_bytes(gzip.compress(file.read_bytes()))
        file.unlink()
    packed = load_triples(tmp_path)
    assert (packed.entities, packed.fingerprints()) == (plain.entities, plain.fingerprints())
    assert packed.valid.shape == (0, 3)


def test_duplicates_are_counted_and_kept_once_where_they_came_first(tmp_path: Path) -> None:
    data = _read(tmp_path, "b\tr\ta\na\tr\tb\nb\tr\ta\nb\tr\ta\n", "a\tr\tb\n", "b\ts\ta\nb\ts\ta\n")
    assert names_of(data, "train") == [("b", "r", "a"), ("a", "r", "b")]
    assert data.duplicates == {"train": 2, "valid": 0, "test": 1}
    assert data.notes == tuple(f"{part} triples; each was kept once" for part in ("train repeats 2", "test repeats 1"))


def test_a_first_line_that_names_the_columns_is_no_triple(tmp_path: Path) -> None:
    header, other = "\ufeffhead\trelation\ttail\r\n", "Subject\tPREDICATE\tobject\n"
    data = _read(tmp_path, header + "a\tr\tb\nhead\trelation\ttail\n", other + "a\tr\tb\n", "a\tr\tb\n")
    # Further down the same line is a triple as any other.
    assert names_of(data, "train") == [("a", "r", "b"), ("head", "relation", "tail")]
    assert names_of(data, "valid") == names_of(data, "test") == [("a", "r", "b")]
    assert data.notes == (
        "train.txt begins with a header (head, relation, tail), which was not read as a triple",
        "valid.txt begins with a header (Subject, PREDICATE, object), which was not read as a triple",
    )
    assert data.with_train_file(tmp_path / "valid.txt").train.tolist() == data.train.tolist()


def test_a_header_may_lack_the_tail() -> None:
    asked = [(2, ["a", "r"])]
    for header in (["head", "relation"], ["Subject", "Predicate"]):
        assert without_header([(1, header), *asked]) == (asked, header)
    for columns in (["relation", "tail"], ["head"], ["head", "predicate"]):
        assert without_header([(1, columns), *asked]) == ([(1, columns), *asked], [])


def test_fingerprints_tell_triples_and_not_their_order() -> None:
    rows = [("a", "r", "b"), ("b", "r", "c"), ("c", "r", "a")]
    one, other = (named_triples(*splits).fingerprints() for splits in ((rows, rows[:1]), (rows[::-1], rows[1:2])))
    assert one["train"] == other["train"] and one["test"] == other["test"] and one["valid"] != other["valid"]
    # Run folders keep them: another number here is a note in front of every score of an old run.
    assert one["train"] == "1f407760bdd893c4"


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("a\tr\tb\na r b\n", r"train\.txt, line 2: it has 1 columns; allowed: head, relation, tail"),
        ("a\tr\tb\n\na\tr\tb\t1\n", r"train\.txt, line 3: it has 4 columns"),
        ("a\t\tb\n", r"train\.txt, line 1: the relation is empty"),
        ("a\tr\t\r\n", r"train\.txt, line 1: the tail is empty"),
        ("a\tr\tb\n   \tr\tb\n", r"train\.txt, line 2: the head is empty"),
        ("\n\n", r"train\.txt: it has no triple"),
        ("Subject\tPREDICATE\tobject\n", r"train\.txt: it has no triple"),
    ],
)
def test_a_wrong_line_is_named(tmp_path: Path, text: str, words: str) -> None:
    with pytest.raises(ValueError, match=words):
        _read(tmp_path, text)


def test_files_that_are_no_text(tmp_path: Path) -> None:
    write_texts(tmp_path, ".txt", train="a\tr\tb\n", valid="")
    (tmp_path / "test.txt").write_bytes(b"a\tr\tb\nM\xfcller\tr\tb\n")
    with pytest.raises(ValueError, match=r"nowhere\.tsv: it cannot be read \(No such file or directory\)"):
        read_lines(tmp_path / "nowhere.tsv")
    with pytest.raises(ValueError, match=r"test\.txt, line 2: it is not UTF-8"):
        load_triples(tmp_path)
    (tmp_path / "test.txt").unlink()
    for content in (b"a\tr\tb\n", gzip.compress(b"a\tr\tb\n" * 99)[:-9]):
        (tmp_path / "test.txt.gz").write_bytes(content)
        with pytest.raises(ValueError, match=r"test\.txt\.gz: it is not a whole gzip file"):
            load_triples(tmp_path)


def test_a_missing_file_and_one_too_many_are_named(tmp_path: Path) -> None:
    (tmp_path / "train.txt").write_text("a\tr\tb\n")
    with pytest.raises(ValueError, match="has no valid file"):
        load_triples(tmp_path)
    (tmp_path / "train.tsv").write_text("a\tr\tb\n")
    with pytest.raises(ValueError, match=r"several train files \(train\.txt, train\.tsv\)"):
        load_triples(tmp_path)


def test_names_in_names_out() -> None:
    data = named_triples([("anna-12", "aunt_of", "ben-2")])
    assert (data.entity_id("ben-2"), data.relation_id("aunt_of")) == (1, 0)
    for ask, name, words in (
        (data.entity_id, "Anna12", "entity is 'Anna12'; allowed: one of the 2 of drawn, nearest: 'anna-12'"),
        (data.relation_id, "aunt", "relation is 'aunt'; allowed: one of the 1 of drawn, nearest: 'aunt_of'"),
        (data.entity_id, "☃", "is '☃'; allowed: one of the 2 of drawn, for example 'anna-12', 'ben-2'"),
        (data.split, "dev", "split is 'dev'; allowed: 'train', 'valid', 'test'"),
    ):
        with pytest.raises(ValueError, match=words):
            ask(name)


def test_new_triples_of_known_names_come_with_notes(tmp_path: Path) -> None:
    data = named_triples([("a", "r", "b"), ("b", "r", "c"), ("a", "r", "b")])
    file = tmp_path / "more.tsv"
    file.write_text("c\tr\ta\n\nc\tr\taa\n")
    with pytest.raises(ValueError, match=r"more\.tsv, line 3: entity is 'aa'; allowed: one of the 3 of drawn"):
        data.with_train_file(file)
    file.write_text("Head\tRelation\tTail\nc\tr\ta\na\tr\tb\nc\tr\ta\n")
    more = data.with_train_file(file)
    assert more.train.tolist() == [[0, 0, 1], [1, 0, 2], [2, 0, 0]]
    assert data.train.tolist() == [[0, 0, 1], [1, 0, 2]]
    assert more.notes == (
        "train repeats 1 triples; each was kept once",
        "more.tsv begins with a header (Head, Relation, Tail), which was not read as a triple",
        "more.tsv repeats 2 triples, its own or those of train; each was kept once",
    )
    file.write_text("c\tr\ta\n")
    assert data.with_train_file(file).notes == data.notes


@pytest.mark.parametrize(
    ("name", "entities", "relations", "sizes", "seen"),
    [
        ("wn18rr", 40_943, 11, (86_835, 3_034, 3_134), 40_559),
        pytest.param("fb15k-237", 14_541, 237, (272_115, 17_535, 20_466), 14_505, marks=pytest.mark.slow),
        ("wn18rr-v1", 2_746, 9, (5_410, 630, 638), 2_746),
        ("fb15k-237-v1", 1_594, 180, (4_245, 489, 492), 1_594),
    ],
)
def test_counts(name: str, entities: int, relations: int, sizes: tuple[int, ...], seen: int) -> None:
    needs(name)
    start = time.process_time()
    data = load_triples(name)
    assert time.process_time() - start < 5  # below 1 s where nothing else runs
    assert (data.num_entities, data.num_relations) == (entities, relations)
    assert (len(data.train), len(data.valid), len(data.test)) == sizes
    assert torch.unique(data.train[:, [0, 2]]).numel() == seen
    assert not any("\r" in entity for entity in data.entities)
    assert set(data.duplicates.values()) == {0} and data.train.dtype == torch.int64
