"""`Grid` yields every combination of the values listed in a config. These tests cover the config part of contract J16."""

import os
import subprocess
import sys
import time
import tracemalloc
from collections import Counter
from itertools import islice, pairwise

import numpy
import pytest

from trainmaster.config import Config, Grid
from trainmaster.errors import ConfigError


def huge(digits):
    """Return a grid with 10 ** `digits` combinations."""
    return {f"k{number}": list(range(10)) for number in range(digits)}


# ---- which combinations


def test_lists_give_their_full_product():
    """Covers contract J16."""
    found = [tuple(each.flatten().values()) for each in Grid({"a": [1, 2], "b": ["x", "y", "z"]})]
    assert sorted(found) == [(a, b) for a in (1, 2) for b in "xyz"]


def test_a_value_that_is_not_a_list_is_fixed():
    """Covers contract J16."""
    choices = Grid({"a": [1, 2], "b": 3, "c": "text", "d": None, "e": 0.5, "f": True})
    assert len(choices) == 2
    assert all(each | {"a": 1} == {"a": 1, "b": 3, "c": "text", "d": None, "e": 0.5, "f": True} for each in choices)


def test_text_is_one_value_not_a_list_of_letters():
    """Covers contract J16."""
    assert len(Grid({"a": "abc"})) == 1


def test_a_grid_without_lists_has_one_combination():
    """Covers contract J16."""
    assert list(Grid({"a": 1})) == [{"a": 1}]
    assert list(Grid({})) == [{}]


def test_nested_and_dotted_leaves_are_combined():
    """Covers contract J16."""
    choices = Grid({"model": {"width": [1, 2], "depth": 3}, "model.bias": [True, False], "lr": [0.1]})
    assert len(choices) == 4
    assert choices[0] == {"model": {"width": 1, "depth": 3, "bias": True}, "lr": 0.1}


def test_an_empty_group_is_kept():
    """Covers contract J16."""
    assert list(Grid({"a": {}, "b": [1]})) == [{"a": {}, "b": 1}]


def test_a_combination_is_a_config():
    """Covers contract J16."""
    combination = Grid({"a.b": [1, 2]})[0]
    assert type(combination) is Config
    assert combination.a.b == 1


def test_a_list_as_a_value_is_written_inside_a_list():
    """Contract J16: only leaf lists are alternatives."""
    assert [each.sizes for each in Grid({"sizes": [[1, 2], [3]]}, seed=0)] in ([[1, 2], [3]], [[3], [1, 2]])
    assert Grid({"sizes": [[1, 2]]})[0] == {"sizes": [1, 2]}


def test_a_group_can_be_an_alternative():
    """Covers contract J16."""
    choices = Grid({"model": [{"name": "a"}, {"name": "b", "width": 3}], "lr": [1, 2]})
    assert len(choices) == 4
    assert choices[-1] == Config({"model": {"name": "b", "width": 3}, "lr": 2})


def test_none_can_be_an_alternative():
    """Covers contract J16."""
    assert {each.a for each in Grid({"a": [None, 1]})} == {None, 1}


def test_equal_alternatives_count_once():
    """Contract J16: no combination occurs twice."""
    choices = Grid({"a": [1, 2, 1, 1], "b": [[1, 2], (1, 2)], "c": [{"x.y": 1}, {"x": {"y": 1}}], "d": [numpy.int64(3), 3]})
    assert len(choices) == 2
    assert sorted(each.a for each in choices) == [1, 2]


def test_alternatives_that_differ_in_type_only_are_different():
    """Contract J16: as in the key of a config, `1`, `1.0`, `True` and `"1"` differ."""
    assert len(Grid({"a": [1, 1.0, True, "1"]})) == 4


def test_a_repeated_alternative_keeps_its_first_position():
    """The index follows the order in which the values were written."""
    choices = Grid({"a": [1, 2, 1, 3, 2]})
    assert [choices[index].a for index in range(3)] == [1, 2, 3]


def test_a_range_gives_alternatives():
    assert sorted(each.a for each in Grid({"a": range(2, 5)})) == [2, 3, 4]


def test_a_numpy_array_gives_plain_numbers_as_alternatives():
    values = [each.a for each in Grid({"a": numpy.arange(3)})]
    assert sorted(values) == [0, 1, 2]
    assert {type(each) for each in values} == {int}
    assert sorted(each.lr for each in Grid({"lr": numpy.array([0.5, 0.25])})) == [0.25, 0.5]


def test_a_two_dimensional_array_gives_its_rows():
    assert Grid({"a": numpy.eye(2)})[0] == {"a": [1.0, 0.0]}


def test_a_numpy_scalar_is_one_value():
    assert list(Grid({"a": numpy.float64(0.5)})) == [{"a": 0.5}]


def test_all_empty_lists_are_reported():
    with pytest.raises(ConfigError, match="has no values to choose from") as caught:
        Grid({"a": [], "b": {"c": ()}, "d": [1], "e": numpy.array([]), "f": range(0)})
    assert [each.key for each in caught.value.problems] == ["a", "b.c", "e", "f"]


def test_values_that_cannot_be_stored_in_a_config_are_refused():
    with pytest.raises(ConfigError, match=r"a\.1: builtins\.object cannot be stored in a config"):
        Grid({"a": [1, object()]})


def test_a_set_is_refused_because_it_has_no_order():
    with pytest.raises(ConfigError, match="a set has no order; write a sorted list"):
        Grid({"a": {1, 2}})


def test_keys_are_checked_like_those_of_a_config():
    with pytest.raises(ConfigError, match="is a method of Config"):
        Grid({"update": [1, 2]})
    with pytest.raises(ConfigError, match="given twice"):
        Grid({"a.b": [1], "a": {"b": [2]}})


def test_changing_a_combination_changes_no_other():
    choices = Grid({"a": [[1], [2]], "b": {"c": [{"d": 1}]}})
    first = choices[0]
    first.a.append(9)
    first.b.c.d = 9
    assert choices[0] == {"a": [1], "b": {"c": {"d": 1}}}


def test_changing_the_source_changes_no_combination():
    source = {"a": [[1], [2]]}
    choices = Grid(source)
    source["a"][0].append(9)
    source["a"].append([3])
    assert choices[0] == {"a": [1]}
    assert len(choices) == 2


# ---- files


@pytest.mark.parametrize(("name", "text"), [("c.yaml", "lr: [1e-1, 1e-2]\nmodel:\n  width: [1, 2]\nx: 3\n"), ("c.json", None)])
def test_choices_come_from_a_file(tmp_path, name, text):
    path = tmp_path / name
    path.write_text(text or '{"lr": [0.1, 0.01], "model": {"width": [1, 2]}, "x": 3}')
    for each in (path, str(path)):
        choices = Grid(each)
        assert len(choices) == 4
        assert choices[0] == {"lr": 0.1, "model": {"width": 1}, "x": 3}


def test_a_file_with_a_list_is_refused_with_its_name(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("[1, 2]\n")
    with pytest.raises(ConfigError, match=r"c\.yaml` is not a config: it holds a list"):
        Grid(path)


def test_an_empty_list_in_a_file_is_named_with_the_file(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text("b: 1\na: []\n")
    with pytest.raises(ConfigError, match=r"a = \[\]: has no values") as caught:
        Grid(path)
    assert "c.yaml" in str(caught.value)


# ---- the order

SIZES = [1, 2, 3, 5, 64, 1000]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("seed", [0, 1, 12345])
def test_every_combination_comes_exactly_once(size, seed):
    """Contract J16: no combination is repeated."""
    assert sorted(each.a for each in Grid({"a": range(size)}, seed=seed)) == list(range(size))


@pytest.mark.parametrize("sizes", [(2, 2), (3, 5), (1, 7, 1), (4, 16), (10, 10, 10), (7, 11, 13)])
def test_every_combination_of_several_keys_comes_exactly_once(sizes):
    """Covers contract J16."""
    choices = Grid({f"k{number}": range(size) for number, size in enumerate(sizes)})
    counted = Counter(tuple(each.values()) for each in choices)
    assert len(counted) == choices.count == numpy.prod(sizes)
    assert set(counted.values()) == {1}


def test_the_order_is_the_same_every_time():
    """Contract J16: the order is random, but the same for the same seed."""
    choices = Grid({"a": range(1000)}, seed=3)
    assert list(choices) == list(choices) == list(Grid({"a": range(1000)}, seed=3))


def test_two_iterators_do_not_disturb_each_other():
    choices = Grid({"a": range(10)})
    one, other = iter(choices), iter(choices)
    next(one), next(one)
    assert next(other) == next(iter(choices))


def test_another_seed_gives_another_order():
    """Covers contract J16."""
    orders = {tuple(each.a for each in Grid({"a": range(64)}, seed=seed)) for seed in range(20)}
    assert len(orders) == 20


def test_the_order_does_not_change_the_random_numbers_of_the_program():
    import random

    random.seed(1)
    expected = random.random()
    random.seed(1)
    list(Grid({"a": range(10)}))
    assert random.random() == expected


def test_the_order_is_the_same_in_another_process_with_another_hash_seed():
    """Contract J16: two workers that share a seed visit the same combinations in the same order."""
    code = "from trainmaster.config import Grid\n"
    code += "print([c.a.b + c.z for c in Grid({'a.b': ['x', 'y', 'z'], 'z': list('pqrst')}, seed=5)])"
    printed = [
        subprocess.run(
            [sys.executable, "-c", code], env={**os.environ, "PYTHONHASHSEED": seed}, capture_output=True, text=True, check=True
        ).stdout
        for seed in ("1", "2")
    ]
    here = [c.a.b + c.z for c in Grid({"a.b": ["x", "y", "z"], "z": list("pqrst")}, seed=5)]
    assert printed == [f"{here}\n"] * 2


def first_indexes(count, digits, seed):
    return [int("".join(str(value) for value in each.values())) for each in islice(Grid(huge(digits), seed=seed), count)]


@pytest.mark.parametrize("seed", range(5))
def test_the_order_is_neither_ascending_nor_descending(seed):
    """Contract J16: the order is random.

    Of 99 steps, about half should go up; the probability of fewer than 25 is below 1e-9.
    """
    found = first_indexes(100, 6, seed)
    num_up = sum(one < other for one, other in pairwise(found))
    assert 25 <= num_up <= 75


@pytest.mark.parametrize("seed", range(5))
def test_neighbors_in_the_order_are_far_apart(seed):
    """Contract J16: the order is random.

    The mean distance between random indices is a third of the range, with a standard deviation of 0.024.
    """
    found = first_indexes(100, 6, seed)
    mean = sum(abs(one - other) for one, other in pairwise(found)) / 99 / 1e6
    assert 0.2 < mean < 0.47


@pytest.mark.parametrize("seed", range(3))
def test_every_value_of_every_key_occurs_about_equally_often(seed):
    """Contract J16: the order is random.

    The probability that chi-squared with 9 degrees of freedom exceeds 40 is below 1e-5.
    """
    counted = {key: Counter() for key in huge(6)}
    for each in islice(Grid(huge(6), seed=seed), 1000):
        for key, value in each.items():
            counted[key][value] += 1
    for counts in counted.values():
        assert sum((counts[value] - 100) ** 2 / 100 for value in range(10)) < 40


def test_the_first_combination_depends_on_the_seed():
    """Contract J16: the first combination is also random."""
    counted = Counter(next(iter(Grid({"a": range(10)}, seed=seed))).a for seed in range(300))
    assert len(counted) == 10
    assert max(counted.values()) < 80


# ---- size


@pytest.mark.parametrize("digits", [9, 30])
def test_starting_a_huge_grid_needs_neither_time_nor_memory(digits):
    """Contract J16: a sweep over 10 ** 30 combinations can be started."""
    start = time.perf_counter()
    tracemalloc.start()
    choices = Grid(huge(digits))
    found = list(islice(choices, 100))
    _, peak = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    assert choices.count == 10**digits
    assert len({tuple(each.values()) for each in found}) == 100
    assert peak < 2**20
    assert time.perf_counter() - start < 3


def test_the_last_combination_of_a_huge_grid_is_found_at_once():
    choices = Grid(huge(30))
    assert choices[10**30 - 1] == choices[-1] == dict.fromkeys(huge(30), 9)
    assert choices[-(10**30)] == dict.fromkeys(huge(30), 0)


def test_a_huge_grid_is_true():
    """Without `__bool__`, `if choices:` would call `len`, which Python limits."""
    assert Grid(huge(30))


def test_a_huge_grid_has_a_repr():
    assert repr(Grid(huge(9), seed=4)).startswith("Grid(1,000,000,000 combinations of k0, k1")
    assert repr(Grid(huge(9), seed=4)).endswith("seed 4)")


# ---- by index


def test_the_index_follows_the_order_of_the_keys_and_the_last_key_varies_fastest():
    choices = Grid({"a": [1, 2], "b": ["x", "y", "z"]})
    assert [tuple(choices[index].values()) for index in range(6)] == [(a, b) for a in (1, 2) for b in "xyz"]


def test_a_negative_index_counts_from_the_end():
    choices = Grid({"a": [1, 2, 3]})
    assert [choices[index].a for index in (-1, -2, -3)] == [3, 2, 1]


@pytest.mark.parametrize("index", [3, -4, 10**30])
def test_an_index_out_of_range_is_an_index_error(index):
    with pytest.raises(IndexError, match=f"there is no combination {index}: the grid has 3"):
        Grid({"a": [1, 2, 3]})[index]


def test_a_numpy_index_works_for_a_huge_grid():
    assert Grid(huge(30))[numpy.int64(3)].k29 == 3


@pytest.mark.parametrize("index", ["a", 1.5, None])
def test_an_index_that_is_not_a_whole_number_is_a_type_error(index):
    with pytest.raises(TypeError):
        Grid({"a": [1, 2, 3]})[index]


def test_the_index_does_not_depend_on_the_seed():
    assert Grid({"a": range(9)}, seed=1)[4] == Grid({"a": range(9)}, seed=2)[4]


def test_len_is_the_count():
    choices = Grid({"a": range(9), "b": range(2)})
    assert len(choices) == choices.count == 18
