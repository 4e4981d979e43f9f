"""Each config has one key, and access to a config takes the same time in any store (contracts J5 and J6)."""

from __future__ import annotations

import json
import math
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from trainmaster.config import Config, ConfigBase, OptimizerConfig, SchedulerConfig, Stateless, canonical, configclass, key_of
from trainmaster.config.identity import hash_of
from trainmaster.errors import ConfigError, StoreDamagedError, UnknownRunError
from trainmaster.store import Store
from trainmaster.store.checksummed_json import record_bytes
from trainmaster.store.configs import ConfigArchive
from trainmaster.store.keys import config_path
from trainmaster.store.memory_files import MemoryFiles

ALIKE = ({"n": 7335}, {"n": 13654})
"""Two configs whose hashes begin with the same eight digits."""
LEAVES = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5)
VALUES = st.recursive(LEAVES, lambda each: st.lists(each, max_size=3), max_leaves=5)
CONFIGS = st.dictionaries(st.sampled_from(["lr", "arch", "deep.a", "deep.b", "seed", "epochs"]), VALUES, max_size=5)


@configclass
class Net(ConfigBase):
    width: int = 8
    path: Stateless[str] = "here"


@configclass
class Recipe(ConfigBase):
    optimizers: list[OptimizerConfig] = []
    scheduler: SchedulerConfig | None = None


def shuffled(config: dict[str, Any]) -> dict[str, Any]:
    return dict(reversed(config.items()))


# ---- one config, one key (J5)


@settings(max_examples=100, deadline=None)
@given(st.lists(CONFIGS, max_size=6))
def test_configs_with_equal_identities_have_equal_keys(configs: list[dict[str, Any]]) -> None:
    archive = Store(None).configs
    keys = [archive.add(config) for config in configs]
    assert keys == [key_of(config) for config in configs]
    assert [archive.add(shuffled(config)) for config in configs] == keys
    assert sorted(archive) == sorted(set(keys))


@settings(max_examples=100, deadline=None)
@given(CONFIGS)
def test_a_config_is_read_as_it_was_added(config: dict[str, Any]) -> None:
    archive = Store(None).configs
    found = archive[archive.add(config)]
    assert isinstance(found, Config)
    assert repr(found.asdict()) == repr(Config(config).asdict()).replace("-nan", "nan")


def test_a_key_is_eight_hex_digits_of_the_content(store: Store) -> None:
    assert store.configs.add({"n": 7335}) == "8e3265b9"


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1, "b": {"c": 2, "d": 3}}, {"b": {"d": 3, "c": 2}, "a": 1}),
        ({"b": {"c": 2}}, {"b.c": 2}),
        ({"shape": (1, 2)}, {"shape": [1, 2]}),
        ({"lr": math.nan}, {"lr": float("-nan")}),
        ({"lr": -0.0}, {"lr": 0.0}),
        ({"lr": np.float64(0.1)}, {"lr": 0.1}),
        ({"root": Path("data")}, {"root": "data"}),
        ({"lr": 0.1}, Config(lr=0.1)),
    ],
)
def test_configs_with_the_same_meaning_have_one_key(store: Store, one: Any, other: Any) -> None:
    assert store.configs.add(one) == store.configs.add(other)
    assert len(store.configs) == 1


@pytest.mark.parametrize(
    ("one", "other"),
    [
        ({"a": 1}, {"a": 1.0}),
        ({"a": 1}, {"a": True}),
        ({"a": 1}, {"a": "1"}),
        ({"a": None}, {}),
        ({"a": [1, 2]}, {"a": [2, 1]}),
        ({"a": math.nan}, {"a": math.inf}),
        ({"a": math.nan}, {"a": "nan"}),
        ({"a": {}}, {"a": []}),
        ({"a": 1, "epochs": 5}, {"a": 1, "epochs": 7}),
    ],
)
def test_configs_with_different_meanings_have_two_keys(store: Store, one: Any, other: Any) -> None:
    assert store.configs.add(one) != store.configs.add(other)
    assert len(store.configs) == 2


def test_nan_and_infinities_are_restored(store: Store) -> None:
    found = store.configs[store.configs.add({"a": [math.nan, math.inf, -math.inf]})]
    assert repr(found.a) == "[nan, inf, -inf]"


@pytest.mark.parametrize("lr", ["garbage", [1], None])
def test_a_float_that_cannot_be_restored_is_damage(store: Store, lr: Any) -> None:
    tree = {"lr": {".float": lr}}
    full = hash_of(canonical({"lr": "there"}).replace('"there"', json.dumps(tree["lr"], separators=(",", ":"))))
    store.files.create(config_path(full[:8]), record_bytes({"hash": full, "config": tree}))
    with pytest.raises(StoreDamagedError, match="not a config"):
        store.configs[full[:8]]
    assert [each.path for each in store.verify()] == [config_path(full[:8])]
    with pytest.warns(UserWarning, match="is skipped"):
        assert not store.index.configs().keys


def test_a_record_whose_identity_lacks_the_number_of_epochs_is_damaged(store: Store) -> None:
    full = key_of({"lr": 0.1}, 64)
    record = {"hash": full, "config": {"lr": 0.1, "epochs": 5}, "identity": {"lr": 0.1}}
    store.files.create(config_path(full[:8]), record_bytes(record))
    with pytest.raises(StoreDamagedError, match="its config and its identity differ"):
        store.configs[full[:8]]


def test_stateless_fields_are_stored_but_are_not_part_of_the_key(store: Store) -> None:  # A12
    key = store.configs.add(Net(path="there"))
    assert store.configs.add(Net(path="elsewhere")) == key
    assert store.configs[key].asdict() == {"width": 8, "path": "there"}


def test_stateful_fields_are_part_of_the_key(store: Store) -> None:
    assert store.configs.add(Net(width=9)) != store.configs.add(Net())


def test_a_typed_config_is_stored_with_the_name_of_its_class(store: Store) -> None:
    record = store.configs.record(store.configs.add(Net()))
    assert record["class"].endswith(".Net")


@pytest.mark.parametrize("step_when", [None, "train", "epoch", "val"])
@pytest.mark.parametrize("name", ["step", "StepLR", "cycle", "OneCycleLR", "plateau", "ReduceLROnPlateau", "CosineAnnealingLR", "none"])
def test_a_config_with_a_schedule_is_read_as_it_was_added(store: Store, name: str, step_when: Any) -> None:
    config = Recipe(scheduler=SchedulerConfig(name=name, step_when=step_when))
    key = store.configs.add(config)
    assert store.configs[key].asdict() == config.to_dict()
    assert store.configs.add(config.clone()) == key
    assert [*store.verify()] == []


def test_a_list_that_was_changed_in_place_is_stored_as_it_is_validated(store: Store) -> None:
    config = Recipe(optimizers=[])
    config.optimizers.append({"name": "SGD"})  # type: ignore[arg-type]
    key = store.configs.add(config)
    assert store.configs[key].optimizers == [{"name": "sgd", "arguments": {}}]


def test_a_config_without_values_has_a_key(store: Store) -> None:
    assert store.configs[store.configs.add({})] == {}


def test_text_of_any_kind_is_kept(store: Store) -> None:  # I11
    config = {"name": "ü e\u0301 \U0001f600 \u202e a/../b \n\t\0"}
    assert store.configs[store.configs.add(config)].name == config["name"]


@pytest.mark.parametrize("config", [None, 3, "lr: 1", [1], {"a": object()}, {"a": print}, {1: 2}])
def test_an_invalid_config_is_refused_and_nothing_is_stored(store: Store, config: Any) -> None:
    with pytest.raises((ConfigError, TypeError)):
        store.configs.add(config)
    assert len(store.configs) == 0


def test_a_config_too_large_to_be_read_is_not_stored(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("trainmaster.store.configs.MAX_BYTES", 20_000)
    with pytest.raises(ConfigError, match="cannot be stored: the limit is 20,000"):
        store.configs.add({"text": "x" * 20_001})
    assert len(store.configs) == 0


def test_get_key_returns_none_for_a_config_that_is_not_stored(store: Store) -> None:
    assert store.configs.get_key({"lr": 0.1}) is None
    assert len(store.configs) == 0


def test_two_stores_give_a_config_the_same_key(store: Store) -> None:
    assert store.configs.add({"lr": 0.1}) == Store(None).configs.add({"lr": 0.1})


def test_sixteen_threads_that_add_one_config_get_one_key(store: Store) -> None:
    keys: list[str] = []
    barrier = threading.Barrier(16)

    def add() -> None:
        barrier.wait()
        keys.append(store.configs.add({"lr": 0.1}))

    threads = [threading.Thread(target=add) for _ in range(16)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert keys == [key_of({"lr": 0.1})] * 16
    assert len(store.configs) == 1


# ---- keys with a common prefix


def test_the_second_of_two_configs_with_a_common_prefix_has_a_longer_key(store: Store) -> None:
    keys = [store.configs.add(config) for config in ALIKE]
    assert [len(key) for key in keys] == [8, 16]
    assert keys[1].startswith(keys[0])
    assert [store.configs[key] for key in keys] == [*ALIKE]


def test_configs_with_a_common_prefix_keep_their_keys(store: Store) -> None:
    keys = [store.configs.add(config) for config in ALIKE]
    assert [store.configs.add(config) for config in reversed(ALIKE)] == keys[::-1]
    assert [store.configs.get_key(config) for config in ALIKE] == keys


def test_a_longer_key_is_kept_when_the_shorter_one_is_popped(store: Store) -> None:
    keys = [store.configs.add(config) for config in ALIKE]
    store.pop(keys[0])
    assert store.configs.get_key(ALIKE[1]) == keys[1]
    assert store.configs.add(ALIKE[1]) == keys[1]
    assert store.configs.get_key(ALIKE[0]) is None


def test_a_config_that_shares_only_a_prefix_with_a_stored_one_has_no_key(store: Store) -> None:
    store.configs.add(ALIKE[0])
    assert store.configs.get_key(ALIKE[1]) is None


# ---- many at once


@settings(max_examples=50, deadline=None)
@given(st.lists(CONFIGS | st.sampled_from(ALIKE), max_size=8), st.lists(CONFIGS | st.sampled_from(ALIKE), max_size=3))
def test_adding_many_has_the_same_result_as_adding_one_by_one(configs: list[dict[str, Any]], stored: list[dict[str, Any]]) -> None:
    many, single = Store(None).configs, Store(None).configs
    for config in stored:
        assert many.add(config) == single.add(config)
    assert many.add_many(configs) == [single.add(config) for config in configs]
    assert sorted(map(repr, many.items())) == sorted(map(repr, single.items()))


def test_many_are_stored_in_order(store: Store) -> None:
    configs = [{"n": number} for number in range(50)]
    keys = store.configs.add_many(iter(configs))
    assert [store.configs[key] for key in keys] == configs


def test_the_same_config_twice_among_many_is_stored_once(store: Store) -> None:
    one, two, again = store.configs.add_many([{"n": 1}, {"n": 2}, {"n": 1}])
    assert one == again != two
    assert len(store.configs) == 2


def test_two_among_many_with_a_common_prefix_have_different_keys(store: Store) -> None:
    keys = store.configs.add_many([*ALIKE, *ALIKE])
    assert [len(key) for key in keys] == [8, 16, 8, 16]
    assert [store.configs[key] for key in keys] == [*ALIKE, *ALIKE]


def test_one_among_many_with_the_prefix_of_a_stored_one_has_a_different_key(store: Store) -> None:
    first = store.configs.add(ALIKE[0])
    (second,) = store.configs.add_many([ALIKE[1]])
    assert second != first
    assert store.configs[second] == ALIKE[1]


def test_a_config_that_another_process_stores_at_the_same_time_is_stored_once(store: Store) -> None:
    def configs() -> Iterator[dict[str, Any]]:
        yield {"n": 1}
        store.configs.add({"n": 1})

    assert store.configs.add_many(configs()) == [store.configs.get_key({"n": 1})]


def test_if_one_of_many_is_invalid_none_is_stored(disk: Store) -> None:
    with pytest.raises((ConfigError, TypeError)):
        disk.configs.add_many([{"n": 1}, {"n": object()}])
    assert len(disk.configs) == 0


# ---- costs (J5)


def test_adding_and_finding_need_the_same_file_accesses_with_10_and_with_2000_configs(counted: Callable[..., Any]) -> None:
    costs = []
    for size in (10, 2_000):
        store = Store(None)
        store.configs.add_many({"n": number} for number in range(size))
        files = counted(store.files)
        archive = ConfigArchive(files, pytest.fail)
        key = archive.add({"new": size})
        archive.add({"new": size})
        archive.get_key({"n": 3})
        archive.get_key({"missing": 3})
        archive[key], key in archive, archive.get(key)
        costs.append(dict(files.calls))
    assert costs[0] == costs[1]
    assert sum(costs[0].values()) < 25


# ---- like a dict (J6)


def test_a_config_can_be_set_under_its_own_key_only(store: Store) -> None:
    key = key_of({"lr": 0.1})
    store.configs[key] = {"lr": 0.1}
    assert store.configs[key] == {"lr": 0.1}
    with pytest.raises(ConfigError, match=f"the key of this config is {key_of({'lr': 0.2})}, not {key}"):
        store.configs[key] = {"lr": 0.2}


def test_an_unknown_key_is_reported_with_the_nearest_one(store: Store) -> None:
    key = store.configs.add({"lr": 0.1})
    wrong = key[:-1] + ("0" if key[-1] != "0" else "1")
    with pytest.raises(UnknownRunError, match=rf"no config has the key {wrong}(.|\n)*did you mean `{key}`"):
        store.configs[wrong]


def test_get_returns_the_default_for_an_unknown_key(store: Store) -> None:
    assert store.configs.get("00000000") is None
    assert store.configs.get("00000000", 3) == 3


def test_keys_values_and_items_are_those_of_all_configs(store: Store) -> None:
    keys = store.configs.add_many({"n": number} for number in range(10))
    assert sorted(store.configs) == sorted(store.configs.keys()) == sorted(keys)
    assert sorted(config.n for config in store.configs.values()) == [*range(10)]
    assert {key: config.n for key, config in store.configs.items()} == dict(zip(keys, range(10), strict=True))
    assert len(store.configs) == 10


def test_an_empty_archive_is_true(store: Store) -> None:
    assert len(store.configs) == 0
    assert bool(store.configs)
    assert [*store.configs] == []


def test_keys_are_in_a_different_order_each_time(store: Store) -> None:
    store.configs.add_many({"n": number} for number in range(50))
    assert len({tuple(store.configs) for _ in range(5)}) > 1


def test_changing_a_returned_config_does_not_change_the_stored_one(store: Store) -> None:
    key = store.configs.add({"deep": {"a": 1}})
    store.configs[key].deep.a = 2
    assert store.configs[key].deep.a == 1


# ---- damage (I14)


def test_an_edited_config_is_reported(store: Store) -> None:
    key = store.configs.add({"lr": 0.1})
    path = config_path(key)
    store.files.replace(path, store.files.read(path).replace(b"0.1", b"0.2"))
    for ask in (store.configs.__getitem__, lambda key: store.configs.add({"lr": 0.1}), lambda key: store.configs.get_key({"lr": 0.1})):
        with pytest.raises(StoreDamagedError, match=path):
            ask(key)


@pytest.mark.parametrize("edit", [{"step_when": "val"}, {"step_when": None, "name": "cycle"}, {"arguments": None}])
def test_an_edited_schedule_is_reported(store: Store, edit: dict[str, Any]) -> None:
    config = Recipe(scheduler=SchedulerConfig(name="step", arguments={"step_size": 3}))
    key, path = store.configs.add(config), config_path(key_of(config))
    record = store.configs.record(key)
    record["config"]["scheduler"] |= edit
    store.files.replace(path, record_bytes(record))
    with pytest.raises(StoreDamagedError, match="its config and its identity differ"):
        store.configs[key]


def test_a_config_under_another_name_is_reported(store: Store) -> None:
    path = config_path(store.configs.add({"lr": 0.1}))
    store.files.create(config_path("ab12cd34"), store.files.read(path))
    with pytest.raises(StoreDamagedError, match="its name is ab12cd34"):
        store.configs["ab12cd34"]


def test_an_invalid_config_file_has_no_key(store: Store) -> None:
    for path in ("configs/ab/notes.txt", "configs/ab/cd12ef34.json", "configs/README", "configs/ab/ab12cd34"):
        store.files.create(path, b"")
    assert [*store.configs] == []


def test_memory_stores_do_not_share_configs() -> None:
    one, other = ConfigArchive(MemoryFiles(), pytest.fail), ConfigArchive(MemoryFiles(), pytest.fail)
    one.add({"lr": 0.1})
    assert len(other) == 0


def test_a_config_with_further_values_extends_a_stored_one_that_contains_nan(store: Store) -> None:
    key = store.configs.add({"clip": float("nan"), "limits": [float("inf"), 1]})
    assert store.configs.record(key)["config"]["limits"] == [float("inf"), 1]
    assert store.configs.is_extended_by(key, {"clip": float("nan"), "limits": (float("inf"), 1), "lr": 0.1})
    assert not store.configs.is_extended_by(key, {"clip": 1.0, "limits": [float("inf"), 1], "lr": 0.1})
