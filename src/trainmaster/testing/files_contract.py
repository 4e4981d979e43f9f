"""The contract for the storage backends of a `Store`, written as tests that pytest collects from a subclass."""

from __future__ import annotations

import hashlib
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from trainmaster.store.files import Files, Written


class FilesContract:
    """Tests for your storage backend: write `class TestMyFiles(FilesContract)` and override `make`.

    If these tests pass, a `Store` works with your backend. Write additional tests for errors that your storage can cause,
    such as a full disk.
    """

    def make(self, folder: Path) -> Files:
        """Create an empty backend to test. `folder` is an empty folder that the backend may use."""
        raise NotImplementedError(f"override {type(self).__name__}.make so that it returns the files to test")

    @pytest.fixture
    def files(self, tmp_path: Path) -> Files:
        return self.make(tmp_path)

    def test_reading_returns_what_was_created(self, files: Files) -> None:
        files.create("a/b/c.json", b"text")
        assert files.read("a/b/c.json") == b"text"

    def test_reading_many_files_leaves_out_missing_ones(self, files: Files) -> None:
        files.create_many([("a/1", b"one"), ("a/2", b""), ("b/3", b"three")])
        assert dict(files.read_many("a", ["2", "3", "1"])) == {"1": b"one", "2": b""}
        assert dict(files.read_many("c", ["1"])) == {}

    def test_an_existing_file_is_not_created_again(self, files: Files) -> None:
        files.create("a/b", b"first")
        with pytest.raises(FileExistsError):
            files.create("a/b", b"second")
        assert files.read("a/b") == b"first"

    def test_if_sixteen_threads_create_a_file_exactly_one_succeeds(self, files: Files) -> None:
        barrier = threading.Barrier(16)

        def create(number: int) -> bytes | None:
            barrier.wait()
            try:
                files.create("a/b", b"%d" % number)
            except FileExistsError:
                return None
            return b"%d" % number

        with ThreadPoolExecutor(16) as pool:
            created = [data for data in pool.map(create, range(16)) if data is not None]
        assert [files.read("a/b")] == created

    def test_a_missing_file_is_not_found(self, files: Files) -> None:
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

    def test_create_many_reports_existing_files_and_leaves_them_unchanged(self, files: Files) -> None:
        files.create("a/1", b"old")
        existing = files.create_many([("a/1", b"new"), ("a/2", b"two"), ("b/3", b"three")])
        assert existing == ["a/1"]
        assert [files.read(path) for path in ("a/1", "a/2", "b/3")] == [b"old", b"two", b"three"]

    def test_create_many_without_files_does_nothing(self, files: Files) -> None:
        assert files.create_many([]) == []
        assert files.names("") == []

    def test_a_replaced_file_has_the_new_content_only(self, files: Files) -> None:
        files.create("a/b", b"a long content")
        files.replace("a/b", b"short")
        assert files.read("a/b") == b"short"

    def test_a_missing_file_can_be_replaced(self, files: Files) -> None:
        files.replace("a/b", b"text")
        assert files.read("a/b") == b"text"

    def test_writing_in_chunks_returns_size_and_hash(self, files: Files) -> None:
        data = os.urandom(100_000)
        written = files.write("a/b", [data[:1], memoryview(data)[1:70_000], b"", data[70_000:]])
        assert written == Written(100_000, hashlib.sha256(data).hexdigest())
        assert files.read("a/b") == data

    def test_writing_no_chunks_creates_an_empty_file(self, files: Files) -> None:
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

    def test_appending_adds_to_the_end_even_after_reopening(self, files: Files) -> None:
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

    def test_appending_to_a_deleted_file_does_not_restore_it(self, files: Files) -> None:
        appender = files.append("a/b")
        files.delete_folder("a")
        appender.write(b"late")
        appender.sync()
        appender.close()
        assert not files.has("a/b"), "a deleted file is back"

    def test_truncating_keeps_the_first_bytes(self, files: Files) -> None:
        files.create("a/b", b"0123456789")
        files.truncate("a/b", 4)
        assert files.read("a/b") == b"0123"

    def test_each_beat_changes_the_mark(self, files: Files) -> None:
        files.create("a/lease", b"")
        marks = [files.mark("a/lease")]
        for _ in range(5):
            files.beat("a/lease")
            marks.append(files.mark("a/lease"))
        assert len(set(marks)) == 6

    def test_a_beat_creates_a_missing_file(self, files: Files) -> None:
        files.create("a/other", b"")
        files.beat("a/lease")
        assert files.mark("a/lease") is not None

    def test_reading_does_not_change_the_mark(self, files: Files) -> None:
        files.create("a/b", b"text")
        mark = files.mark("a/b")
        files.read("a/b")
        files.names("a")
        assert files.mark("a/b") == mark

    def test_the_mark_of_a_folder_changes_with_each_new_name_in_it(self, files: Files) -> None:
        files.create("a/run/1/x", b"")
        marks = [files.marks("a")["run"]]
        for number in range(2, 6):
            files.create(f"a/run/{number}/x", b"")
            marks.append(files.marks("a")["run"])
        assert len(set(marks)) == 5
        assert files.marks("a")["run"] == marks[-1]
        files.delete_folder("a/run/3")
        assert files.marks("a")["run"] != marks[-1]

    def test_names_lists_the_files_and_folders_of_a_folder(self, files: Files) -> None:
        for path in ("a/1", "a/2", "a/deep/3", "ab/4"):
            files.create(path, b"")
        assert sorted(files.names("a")) == ["1", "2", "deep"]
        assert sorted(files.names("")) == ["a", "ab"]
        assert files.names("missing") == []

    def test_deleting_a_file_leaves_the_others(self, files: Files) -> None:
        files.create("a/1", b"")
        files.create("a/2", b"")
        files.delete("a/1")
        assert files.names("a") == ["2"]

    def test_deleting_a_missing_file_does_nothing(self, files: Files) -> None:
        files.delete("a/b")
        files.delete_folder("a")
        assert files.sweep("a") == []

    def test_deleting_a_folder_deletes_its_content_and_nothing_else(self, files: Files) -> None:
        for path in ("a/b/1", "a/b/deep/2", "a/bc/3"):
            files.create(path, b"")
        files.delete_folder("a/b")
        assert files.names("a") == ["bc"]
        assert not files.has("a/b/deep/2")
