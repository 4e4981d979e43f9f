"""What everything that stores files for a `Store` must keep, as tests that pytest collects from a subclass."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest

from trainmaster.store.files import Files, Written


class FilesContract:
    """Subclass it as `class TestMyFiles(FilesContract)` and override `make`.

    A store can then lie wherever these files do. What a disk says of itself, full or broken, is left to your own tests.
    """

    def make(self, folder: Path) -> Files:
        """An empty place for files; `folder` is an empty folder of this test, if one is needed."""
        raise NotImplementedError(f"{type(self).__name__}.make returns the files to test")

    @pytest.fixture
    def files(self, tmp_path: Path) -> Files:
        return self.make(tmp_path)

    def test_a_created_file_is_read_as_it_was_written(self, files: Files) -> None:
        files.create("a/b/c.json", b"text")
        assert files.read("a/b/c.json") == b"text"

    def test_an_existing_file_is_not_created_again(self, files: Files) -> None:
        files.create("a/b", b"first")
        with pytest.raises(FileExistsError):
            files.create("a/b", b"second")
        assert files.read("a/b") == b"first"

    def test_of_sixteen_that_create_one_file_exactly_one_succeeds(self, files: Files) -> None:
        outcomes: list[int] = []
        barrier = threading.Barrier(16)

        def create(number: int) -> None:
            barrier.wait()
            try:
                files.create("a/b", b"%d" % number)
                outcomes.append(number)
            except FileExistsError:
                pass

        threads = [threading.Thread(target=create, args=(number,)) for number in range(16)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert [files.read("a/b")] == [b"%d" % number for number in outcomes]

    def test_what_is_not_there_is_not_found(self, files: Files) -> None:
        for ask in (files.read, files.open):
            with pytest.raises(FileNotFoundError):
                ask("a/b")
        assert not files.has("a/b")
        assert files.mark("a/b") is None

    def test_an_open_file_reads_the_same_as_read(self, files: Files) -> None:
        files.create("a/b", b"0123456789")
        with files.open("a/b") as file:
            assert file.read(4) + file.read() == b"0123456789"

    def test_an_open_file_outlives_its_deletion(self, files: Files) -> None:
        files.create("a/b", b"text")
        with files.open("a/b") as file:
            files.delete_folder("a")
            assert file.read() == b"text"

    def test_many_are_created_and_those_that_exist_are_told_and_left_alone(self, files: Files) -> None:
        files.create("a/1", b"old")
        existing = files.create_many([("a/1", b"new"), ("a/2", b"two"), ("b/3", b"three")])
        assert existing == ["a/1"]
        assert [files.read(path) for path in ("a/1", "a/2", "b/3")] == [b"old", b"two", b"three"]

    def test_creating_none_of_many_does_nothing(self, files: Files) -> None:
        assert files.create_many([]) == []
        assert files.names("") == []

    def test_a_replaced_file_has_the_new_content_only(self, files: Files) -> None:
        files.create("a/b", b"a long content")
        files.replace("a/b", b"short")
        assert files.read("a/b") == b"short"

    def test_a_missing_file_can_be_replaced(self, files: Files) -> None:
        files.replace("a/b", b"text")
        assert files.read("a/b") == b"text"

    def test_what_is_written_in_pieces_is_told_with_size_and_hash(self, files: Files) -> None:
        data = os.urandom(100_000)
        written = files.write("a/b", [data[:1], memoryview(data)[1:70_000], b"", data[70_000:]])
        assert written == Written(100_000, hashlib.sha256(data).hexdigest())
        assert files.read("a/b") == data

    def test_no_pieces_are_an_empty_file(self, files: Files) -> None:
        assert files.write("a/b", []) == Written(0, hashlib.sha256(b"").hexdigest())
        assert files.read("a/b") == b""

    def test_writing_does_not_touch_an_existing_file(self, files: Files) -> None:
        files.create("a/b", b"old")
        with pytest.raises(FileExistsError):
            files.write("a/b", [b"new"])
        assert files.read("a/b") == b"old"

    def test_a_write_from_a_failing_source_leaves_no_file(self, files: Files) -> None:
        def chunks() -> Iterator[bytes]:
            yield b"half"
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            files.write("a/b", chunks())
        assert not files.has("a/b")

    def test_appending_adds_at_the_end_also_after_opening_again(self, files: Files) -> None:
        for text in (b"one,", b"two,"):
            appender = files.append("a/b")
            appender.write(text)
            appender.write(b"more,")
            appender.sync()
            appender.close()
        assert files.read("a/b") == b"one,more,two,more,"

    def test_an_appender_can_be_closed_twice(self, files: Files) -> None:
        appender = files.append("a/b")
        appender.close()
        appender.close()
        assert files.read("a/b") == b""

    def test_appending_to_a_file_that_was_deleted_meanwhile_harms_nobody(self, files: Files) -> None:
        appender = files.append("a/b")
        files.delete_folder("a")
        appender.write(b"late")
        appender.sync()
        appender.close()
        assert not files.has("a/b"), "what was deleted comes back"

    def test_cutting_leaves_the_first_bytes(self, files: Files) -> None:
        files.create("a/b", b"0123456789")
        files.cut("a/b", 4)
        assert files.read("a/b") == b"0123"

    def test_each_beat_changes_the_mark(self, files: Files) -> None:
        files.create("a/lease", b"")
        marks = [files.mark("a/lease")]
        for _ in range(5):
            files.beat("a/lease")
            marks.append(files.mark("a/lease"))
        assert len(set(marks)) == 6

    def test_a_beat_makes_the_file_where_it_is_missing(self, files: Files) -> None:
        files.create("a/other", b"")
        files.beat("a/lease")
        assert files.mark("a/lease") is not None

    def test_a_look_changes_no_mark(self, files: Files) -> None:
        files.create("a/b", b"text")
        mark = files.mark("a/b")
        files.read("a/b")
        files.names("a")
        assert files.mark("a/b") == mark

    def test_names_are_those_of_files_and_folders_in_a_folder(self, files: Files) -> None:
        for path in ("a/1", "a/2", "a/deep/3", "ab/4"):
            files.create(path, b"")
        assert sorted(files.names("a")) == ["1", "2", "deep"]
        assert sorted(files.names("")) == ["a", "ab"]
        assert files.names("missing") == []

    def test_a_deleted_file_is_gone_and_the_others_stay(self, files: Files) -> None:
        files.create("a/1", b"")
        files.create("a/2", b"")
        files.delete("a/1")
        assert files.names("a") == ["2"]

    def test_deleting_what_is_not_there_is_nothing(self, files: Files) -> None:
        files.delete("a/b")
        files.delete_folder("a")
        assert files.sweep("a") == []

    def test_a_deleted_folder_is_gone_with_all_below_and_its_neighbours_stay(self, files: Files) -> None:
        for path in ("a/b/1", "a/b/deep/2", "a/bc/3"):
            files.create(path, b"")
        files.delete_folder("a/b")
        assert files.names("a") == ["bc"]
        assert not files.has("a/b/deep/2")

    # ---- power loss (C04)
