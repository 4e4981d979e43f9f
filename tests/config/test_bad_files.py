"""A file that is not a valid config is refused quickly and without side effects.

The error reports the file and the position.
"""

import json
import os
import re
import shutil
import subprocess
import sys

import bad_files
import pytest

from trainmaster.config import Config
from trainmaster.errors import ConfigError, ConfigFileError

PROGRAM = bad_files.__file__


def listing(folder):
    return {path.name: (path.lstat().st_size, path.lstat().st_mtime_ns) for path in folder.iterdir()}


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Return a folder with all bad files and the good file that they were made from."""
    folder = tmp_path_factory.mktemp("bad")
    bad_files.write_all(folder)
    yield folder
    shutil.rmtree(folder)


@pytest.fixture(scope="module")
def loads(folder):
    """Load all files in this process, except for the few that are too large, and return the results."""
    return {
        name: {loader: bad_files.said(bad_files.LOADERS[loader], path_of(name, folder)) for loader in bad.loaders}
        for name, bad in bad_files.FILES.items()
        if not is_huge(name, folder)
    }


@pytest.fixture(scope="module")
def measured(folder, tmp_path_factory):
    """Load all files in a separate process.

    Return the contents of the folder before and after, and the result and cost of each load.
    """
    beside = tmp_path_factory.mktemp("working")
    before = listing(folder)
    result = subprocess.run([sys.executable, PROGRAM, str(folder)], capture_output=True, text=True, cwd=beside, check=False)
    assert result.returncode == 0, result.stderr
    return {"before": before, "after": listing(folder), "beside": os.listdir(beside), "loads": json.loads(result.stdout)}


def path_of(name, folder):
    return str(bad_files.path_of(name, folder))


def is_huge(name, folder):
    path = path_of(name, folder)
    return os.path.isfile(path) and os.path.getsize(path) > 100_000


def wrong(loads, is_fine):
    """Return a line for each result that does not satisfy `is_fine`, with the file and the loader."""
    return [f"{name}, {loader}: {load}" for name, each in loads.items() for loader, load in each.items() if not is_fine(name, load)]


def broken_claims(loads, folder):
    def is_named(name, load):
        path, place = path_of(name, folder), bad_files.FILES[name].place
        return path in load["text"] and (not place or re.search(rf"{re.escape(path)}:(?:{place})(?!\d)", load["text"]))

    return {
        "it is refused with a config error": wrong(loads, lambda name, load: "ConfigError" in load["kinds"]),
        "the refusal names the file and the place": wrong(loads, is_named),
        "it says what is wrong": wrong(loads, lambda name, load: re.search(bad_files.FILES[name].says, load["text"])),
        "it is short enough to read": wrong(loads, lambda name, load: 0 < load["length"] < 20_000),
    }


def test_bad_files_are_refused_with_a_short_error_that_has_name_and_position(loads, folder):
    assert len(loads) > 0.8 * len(bad_files.FILES)
    assert {claim: found for claim, found in broken_claims(loads, folder).items() if found} == {}


@pytest.mark.integration
@pytest.mark.skipif("coverage" in sys.modules, reason="under coverage, a load takes more time and memory")
def test_bad_files_are_refused_within_a_second_of_cpu_time_and_200_mb_and_change_nothing(measured, folder):
    """The limit is one second on an idle machine. It is doubled here, because other tests run at the same time."""
    assert {*measured["loads"]} == {*bad_files.FILES}
    claims = broken_claims(measured["loads"], folder)
    claims["it takes a second"] = wrong(measured["loads"], lambda name, load: load["seconds"] < 2.0)
    claims["it takes 200 MB"] = wrong(
        measured["loads"], lambda name, load: "MemoryError" not in load["kinds"] and load["bytes"] < 200 * 2**20
    )
    assert {claim: found for claim, found in claims.items() if found} == {}
    assert measured["after"] == measured["before"]
    assert measured["beside"] == []


def test_the_corpus_has_sixty_different_kinds_of_bad_files():
    contents = [(bad.content, bad.ending) for bad in bad_files.FILES.values()]
    assert len(set(contents)) == len(contents) >= 60


@pytest.mark.parametrize("load", bad_files.LOADERS.values(), ids=bad_files.LOADERS)
def test_the_good_file_from_which_bad_files_are_made_loads(load, tmp_path):
    path = tmp_path / "good.yaml"
    path.write_text(bad_files.GOOD)
    assert load(path)["options"]["text"] == "it's"


def test_a_good_file_truncated_anywhere_is_loaded_or_refused_with_its_name(tmp_path):
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


def test_a_fifo_without_a_writer_does_not_block(tmp_path):
    path = tmp_path / "pipe.yaml"
    os.mkfifo(path)
    with pytest.raises(ConfigFileError, match="is not a regular file"):
        Config.load(path)


def test_a_name_with_a_nul_is_refused(tmp_path):
    with pytest.raises(ValueError, match="null"):
        Config.load(f"{tmp_path}/a\0b.yaml")


def test_a_name_that_is_too_long_is_refused(tmp_path):
    with pytest.raises(ConfigFileError, match="cannot be read: File name too long"):
        Config.load(tmp_path / ("a" * 300))


def test_the_error_for_carriage_returns_shows_the_command_that_removes_them(tmp_path):
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
