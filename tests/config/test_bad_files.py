"""A file that is no config is refused: with its name and place, at once, and without a trace."""

import importlib.util
import json
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from trainmaster.config import Config
from trainmaster.errors import ConfigError, ConfigFileError

PROGRAM = Path(__file__).with_name("bad_files.py")
_spec = importlib.util.spec_from_file_location("bad_files", PROGRAM)
bad_files = importlib.util.module_from_spec(_spec)
_spec.loader.exec_module(bad_files)

EACH = pytest.mark.parametrize(("name", "loader"), [(name, loader) for name, bad in bad_files.FILES.items() for loader in bad.loaders])


def listing(folder):
    return {path.name: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def ran(tmp_path_factory):
    """The folder, what was in it before and after all files were loaded, and what each load did."""
    folder, beside = tmp_path_factory.mktemp("bad"), tmp_path_factory.mktemp("working")
    bad_files.write_all(folder)
    before = listing(folder)
    result = subprocess.run([sys.executable, str(PROGRAM), str(folder)], capture_output=True, text=True, cwd=beside, check=False)
    assert result.returncode == 0, result.stderr
    after = listing(folder)
    for path in folder.glob("*50_MB*"):
        path.unlink()
    return {"folder": folder, "before": before, "after": after, "beside": os.listdir(beside), "loads": json.loads(result.stdout)}


@EACH
def test_a_bad_file_is_refused_with_a_config_error(ran, name, loader):
    load = ran["loads"][name][loader]
    assert "ConfigError" in load["kinds"], load


@EACH
def test_a_refusal_names_the_file_and_the_place(ran, name, loader):
    path, place = str(bad_files.path_of(name, ran["folder"])), bad_files.FILES[name].place
    text = ran["loads"][name][loader]["text"]
    assert path in text
    if place:
        assert re.search(rf"{re.escape(path)}:(?:{place})(?!\d)", text), text


@EACH
def test_a_refusal_says_what_is_wrong(ran, name, loader):
    assert re.search(bad_files.FILES[name].says, ran["loads"][name][loader]["text"])


@EACH
def test_a_refusal_is_short_enough_to_read(ran, name, loader):
    assert 0 < ran["loads"][name][loader]["length"] < 20_000


@EACH
def test_a_bad_file_takes_less_than_a_second(ran, name, loader):
    """On a machine to itself; one that is busy with other tests has half the speed at times."""
    assert ran["loads"][name][loader]["seconds"] < 2.0


@EACH
def test_a_bad_file_takes_less_than_200_mb(ran, name, loader):
    load = ran["loads"][name][loader]
    assert "MemoryError" not in load["kinds"]
    assert load["bytes"] < 200 * 2**20


def test_loading_bad_files_changes_nothing_beside_them(ran):
    assert ran["after"] == ran["before"]


def test_loading_bad_files_leaves_nothing_in_the_working_folder(ran):
    assert ran["beside"] == []


def test_the_corpus_has_sixty_kinds_of_badness_and_no_two_alike():
    contents = [(bad.content, bad.ending) for bad in bad_files.FILES.values()]
    assert len(set(contents)) == len(contents) >= 60


@pytest.mark.parametrize("load", bad_files.LOADERS.values(), ids=bad_files.LOADERS)
def test_the_good_file_that_bad_ones_are_cut_from_loads(load, tmp_path):
    path = tmp_path / "good.yaml"
    path.write_text(bad_files.GOOD)
    assert load(path)["options"]["text"] == "it's"


def test_a_good_file_cut_anywhere_loads_what_is_left_or_is_refused_by_name(tmp_path):
    path = tmp_path / "cut.yaml"
    refusals = []
    for end in range(len(bad_files.GOOD)):
        path.write_text(bad_files.GOOD[:end])
        try:
            Config.load(path)
        except ConfigError as error:
            refusals.append(str(error))
    assert len(refusals) > 40
    assert all(str(path) in each for each in refusals)


def test_the_error_of_a_file_is_a_config_file_error_and_a_value_error(tmp_path):
    path = tmp_path / "cut.yaml"
    path.write_text("a: [1,\n")
    with pytest.raises(ConfigFileError) as caught:
        Config.load(path)
    assert isinstance(caught.value, ConfigError)
    assert isinstance(caught.value, ValueError)
    assert str(caught.value) == (f"`{path}`, line 2: while parsing a flow node did not find expected node content\n  where   {path}:2:1")


def test_the_error_of_a_file_hides_the_parser_it_came_from(tmp_path):
    path = tmp_path / "two.yaml"
    path.write_text("a: b: c\n")
    with pytest.raises(ConfigFileError) as caught:
        Config.load(path)
    assert caught.value.__suppress_context__ or caught.value.__context__ is None


def test_a_fifo_with_nobody_at_its_other_end_does_not_hold_up(tmp_path):
    path = tmp_path / "pipe.yaml"
    os.mkfifo(path)
    with pytest.raises(ConfigFileError, match="is not a regular file"):
        Config.load(path)


def test_a_name_with_a_nul_is_refused(tmp_path):
    with pytest.raises(ConfigFileError, match="is no file name"):
        Config.load(f"{tmp_path}/a\0b.yaml")


def test_a_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(ConfigFileError, match="cannot be read: File name too long"):
        Config.load(tmp_path / ("a" * 300))


def test_carriage_returns_come_with_the_command_that_removes_them(tmp_path):
    path = tmp_path / "dos.yaml"
    path.write_bytes(b"a: 1\r\nb: 2\r\n")
    with pytest.raises(ConfigFileError) as caught:
        Config.load(path)
    command = caught.value.rows["hint"]
    subprocess.run(command, shell=True, check=True)
    assert Config.load(path) == {"a": 1, "b": 2}


def test_the_command_that_removes_carriage_returns_works_for_a_name_with_spaces_and_quotes(tmp_path):
    path = tmp_path / "it's a run; $(touch ran).yaml"
    path.write_bytes(b"a: 1\r\n")
    with pytest.raises(ConfigFileError) as caught:
        Config.load(path)
    subprocess.run(caught.value.rows["hint"], shell=True, check=False, cwd=tmp_path, capture_output=True)
    assert os.listdir(tmp_path) == [path.name]
    assert Config.load(path) == {"a": 1}
