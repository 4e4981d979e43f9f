"""What is a secret and what is none; configs that are stored without theirs; texts that are cleaned of them."""

from __future__ import annotations

import json
import os
import random
from collections.abc import Callable
from string import ascii_letters, ascii_lowercase, digits
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.config import Config, ConfigBase, Stateless, canonical, configclass, group_of, key_of
from trainmaster.config.secret_fields import (
    MASK,
    config_secrets,
    credentials_in,
    hidden_fields,
    is_like_credential,
    masked_config,
    masked_value,
    may_hide_secrets,
    variable_of,
)
from trainmaster.config.secrets import Mask, MaskedStream, argv_secrets, masked, masked_argv, secret_values
from trainmaster.errors import ConfigError
from trainmaster.store import Store

HEX40 = "0123456789abcdef0123456789abcdef01234567"
HF = "hf_AbCdEfGhIjKlMnOpQrStUvWxYz01234567"
GITHUB = "ghp_0123456789abcdefghijklmnopqrstuvwxyz"
OPENAI = "sk-proj-Ab12Cd34Ef56Gh78Ij90Kl12"
JWT = "eyJhbGciOiJIUzI1NiJ9.eyJzdWIiOiIxMjM0NTY3ODkwIn0.dozjgNryP4J3jVmNHl0w5N_XgL0n3I9P"
BASE64 = "wJalrXUtnFEMI/K7MDENG/bPxRfiCYabcdefgKEY"

SECRETS = [
    *[
        ("password", "a"),
        ("password", "hunter2"),
        ("db_password", "correct horse"),
        ("dbPassword", "x1"),
        ("PGPASSWORD", "pg"),
        ("passwd", "x"),
    ],
    *[("passphrase", "some words"), ("ssh_passphrase", "x"), ("db_pwd", "hunter22"), ("passcode", "1234x"), ("password2", "x")],
    *[
        ("secret", "abc"),
        ("client_secret", "abc"),
        ("clientSecret", "abc"),
        ("secret_key", "abc"),
        ("secrets", "abc"),
        ("jwt_secret", "abc"),
    ],
    *[("api_key", "abc"), ("apikey", "abc"), ("apiKey", "abc"), ("api-key", "abc"), ("openai_api_key", "abc"), ("API_KEY", "abc")],
    *[("api_key_2", "abc"), ("wandbApiKey", "abc"), ("api_keys", "abc"), ("access_key", "abc"), ("aws_secret_access_key", "abc")],
    *[("aws_access_key_id", "AKIAIOSFODNN7EXAMPLE")],
    *[("secretAccessKey", "abc"), ("private_key", "abc"), ("signing_key", "abc"), ("encryption_key", "abc"), ("account_key", "abc")],
    *[("auth_token", "abc"), ("access_token", "abc"), ("accessToken", "abc"), ("api_token", "abc"), ("bearer_token", "abc")],
    *[("refresh_token", "abc"), ("session_token", "abc"), ("hub_token", "abc"), ("hf_token", "abc"), ("github_token", "abc")],
    *[("credentials", "abc"), ("credential", "abc"), ("google_credentials", "abc")],
    *[("token", HEX40), ("token", HF), ("token", OPENAI), ("token", "abcd1234efgh5678"), ("my_token", GITHUB), ("key", HEX40)],
    *[("wandb_key", HEX40), ("openai_key", OPENAI), ("auth", HEX40), ("token", "550e8400-e29b-41d4-a716-446655440000"), ("s3_key", BASE64)],
    *[("token", JWT), ("id_token", JWT), ("pwd", HEX40), ("dsn", HEX40)],
]

NO_SECRETS = [
    *[("pad_token", "<pad>"), ("eos_token", "</s>"), ("bos_token", "<s>"), ("mask_token", "[MASK]"), ("unk_token", "<unk>")],
    *[("sep_token", "[SEP]"), ("cls_token", "[CLS]"), ("additional_special_tokens", "<extra_id_0>"), ("pad_token", "<|endoftext|>")],
    *[("eos_token", "<|reserved_special_token_247|>"), ("image_token", "<image_placeholder_0000001>"), ("token", "<|im_start|>")],
    *[("num_tokens", "512"), ("max_tokens", "4096"), ("max_new_tokens", "all"), ("tokenizer", "bert-base-uncased"), ("token_dim", "64")],
    *[("tokenizer", "sentencepiece-32000-bpe"), ("tokens_per_batch", "16k"), ("token_type", "word"), ("image_token_id", "32000")],
    *[("key_size", "64"), ("image_key", "image"), ("target_key", "target"), ("sort_key", "length"), ("query_key", "q"), ("key", "loss")],
    *[("monitor_key", "val/loss"), ("image_key", "observation.images.top_camera_01"), ("feature_key", "resnet50_layer4_features")],
    *[("cache_key", HEX40), ("dataset_key", HEX40), ("parent_key", HEX40), ("group_key", "subject"), ("key", "observation.state.joint_7")],
    *[
        ("keys", "image"),
        ("key_dim", "64"),
        ("keyword", "cat"),
        ("hockey", "x"),
        ("monkey", "capuchin"),
        ("turkey", "tr"),
        ("num_keys", "8"),
    ],
    *[("secretary", "bob"), ("secret_name", "vault"), ("password_length", "12"), ("password_file", "/run/x"), ("api_key_name", "x")],
    *[("author", "Ann Other"), ("authors", "Ann"), ("path", "/data/train"), ("pattern", "*.png"), ("patience", "5"), ("pass", "2")],
    *[("url", "https://example.org/data.zip"), ("url", "http://localhost:8080/@scope/pkg"), ("git", "git@github.com:me/repo.git")],
    *[("email", "me@example.org"), ("commit", HEX40), ("sha256", HEX40 * 2), ("model", "hf_internal_testing_tiny_random_bert")],
    *[
        ("model", "sk-learn-random-forest-version-12-large"),
        ("arch", "ResNet18"),
        ("note", "the password is not here"),
        ("sep", "***"),
        ("hub", HF),
    ],
    *[
        ("password", ""),
        ("api_key", "${API_KEY}"),
        ("api_key", MASK),
        ("token", MASK),
        ("pwd", "/data/me/work"),
        ("dsn", "sqlite:///runs.db"),
    ],
    *[("key", "abcdefghijklmnopqrstuvwxyz"), ("key", "12345678901234567890"), ("token", "a token of several words 123456")],
    *[("credentials", "/data/me/.config/key.json"), ("credentials", "~/.aws/credentials"), ("private_key", "~/.ssh/id_rsa")],
    *[("service_key", "keys/service.json"), ("s3_key", "data/imagenet2012train/shard-000123.tar"), ("key", "vit/epoch0012step00034000.pt")],
    *[("key", "Conv2dBatchNorm2d"), ("key", "EfficientNet_B0-ImageNet21k_finetuned-v2"), ("arch_key", "MulticlassAccuracy2024v2")],
    *[("key", "hf_hub_dataset_v2"), ("token", "sk-learn-tokenizer-v2"), ("key", "imagenet21k_in1k_vit_base_patch16_224")],
    *[("checkpoint_key", HEX40), ("content_key", HEX40), ("artifact_key", HEX40), ("hash_key", HEX40), ("id_key", HEX40)],
    *[
        ("bot_token", "<bot>"),
        ("session_token", "[SESSION]"),
        ("api_key", "<your api key>"),
        ("api_key", "$API_KEY"),
        ("hub_token", "None"),
    ],
    *[
        ("use_auth_token", "true"),
        ("trigger_token", "sks"),
        ("date_key", "20240501T120000Z"),
        ("dsn", "sqlite:////data/x12345678901234567.db"),
        ("note", "password=required"),
    ],
    *[("image", f"docker://pytorch:2.1.0@sha256:{HEX40}"), ("pip", f"git+https://github.com/me/repo@{HEX40}")],
    *[("data", "abfss://a1b2c3d4e5f60718@lab.dfs.core.windows.net/x"), ("data", "hf://datasets/me/repo@refs/convert/parquet")],
    *[("db", "postgres://me:${DB_PASSWORD}@host/x"), ("db", "postgres://me:<password>@host"), ("url", "https://host/?api_key={api_key}")],
]

PARTLY = [
    ("db", "postgres://me:hunter2@host:5432/runs", "postgres://me:***@host:5432/runs"),
    ("proxy", "http://:hunter2@proxy", "http://:***@proxy"),
    ("dsn", "host=db user=me password=hunter2", "host=db user=me password=***"),
    ("conn", "AccountName=me;AccountKey=abc/def==;x=1", "AccountName=me;AccountKey=***;x=1"),
    ("url", "https://host/data?api_key=abcdef&x=1", "https://host/data?api_key=***&x=1"),
    ("remote", f"https://{GITHUB}@github.com/me/repo", "https://***@github.com/me/repo"),
    ("sentry", f"https://{HEX40[:32]}@sentry.io/12", "https://***@sentry.io/12"),
]


class TestWhatIsASecret:
    @pytest.mark.parametrize(("name", "value"), SECRETS)
    def test_a_secret_is_hidden(self, name: str, value: str) -> None:
        assert masked_value(name, value) == MASK

    @pytest.mark.parametrize(("name", "value"), NO_SECRETS)
    def test_what_is_no_secret_stays_as_it_is(self, name: str, value: str) -> None:
        assert masked_value(name, value) == value

    @pytest.mark.parametrize(("name", "value", "stored"), PARTLY)
    def test_of_an_address_or_a_known_form_the_rest_stays(self, name: str, value: str, stored: str) -> None:
        assert masked_value(name, value) == stored

    @pytest.mark.parametrize(("name", "value"), [*SECRETS, *((name, value) for name, value, _ in PARTLY)])
    def test_the_quick_look_passes_over_no_secret(self, name: str, value: str) -> None:
        assert may_hide_secrets(json.dumps({"a": {name: value}}, ensure_ascii=False))

    @pytest.mark.parametrize(("name", "value"), [*SECRETS, *((name, value) for name, value, _ in PARTLY)])
    def test_to_hide_twice_is_to_hide_once(self, name: str, value: str) -> None:
        once = masked_value(name, value)
        assert masked_value(name, once) == once

    def test_an_ordinary_config_costs_the_quick_look_only(self) -> None:
        tree = {"model": {"arch": "resnet", "weight": 1.0, "height": 2, "path": "/data"}, "patience": 3, "shuffle": True, "url": "none"}
        assert not may_hide_secrets(canonical(tree))

    def test_a_credential_is_told_by_its_form(self) -> None:
        assert is_like_credential(HEX40)
        assert not is_like_credential("abc123")
        assert not is_like_credential("two words 0123456789abcdef")


class TestConfigs:
    def test_only_text_is_hidden(self) -> None:
        tree = {"password": 5, "api_key": None, "secret": True, "token": 1.5}
        assert masked_config(tree) is tree

    def test_a_config_without_secrets_is_the_same_object(self) -> None:
        tree = {"a": [1, {"b": "x"}], "tokenizer": {"pad_token": "<pad>"}}
        assert masked_config(tree) is tree

    def test_what_stands_below_a_clear_name_is_hidden_too(self) -> None:
        tree = {"api_keys": ["a", "b", 3], "credentials": {"user": "me", "deep": {"x": "y"}}, "data": ["a"]}
        hidden = {"api_keys": [MASK, MASK, 3], "credentials": {"user": MASK, "deep": {"x": MASK}}, "data": ["a"]}
        assert masked_config(tree) == hidden

    @pytest.mark.parametrize(
        "value", [HF, GITHUB, OPENAI, JWT, "AKIAIOSFODNN7EXAMPLE", "-----BEGIN RSA PRIVATE KEY-----\nabc", f"use {HF}!"]
    )
    def test_a_credential_under_a_name_that_tells_nothing_is_found(self, value: str) -> None:
        assert credentials_in({"a": [{"hub": value}], "api_key": value, "commit": HEX40}) == [("a", 0, "hub")]

    @pytest.mark.parametrize(
        "value", ["sk-learn-RandomForestClassifier2", "/data/sk-ImageNet2012-resized-224", "sk-learn-GradientBoosting-v1-2024"]
    )
    def test_a_name_that_begins_like_a_credential_is_none(self, value: str) -> None:
        assert credentials_in({"model": value}) == []

    @pytest.mark.parametrize(
        "signs", [f"{ascii_letters}{digits}", f"{ascii_letters}{digits}-_", f"{ascii_lowercase}{digits}", "0123456789abcdef"]
    )
    def test_random_signs_are_like_a_credential(self, signs: str) -> None:
        draw = random.Random(0)
        found = [is_like_credential("".join(draw.choices(signs, k=40))) for _ in range(300)]
        assert sum(found) >= 295

    def test_the_values_that_are_hidden_can_be_listed(self) -> None:
        tree = {"api_key": "abcdef", "db": "pg://me:hunter%402@host", "password": "short"[:3], "list": [{"token": HF}]}
        assert config_secrets(tree) == ["abcdef", "hunter%402", "hunter@2", HF]

    def test_the_fields_that_were_hidden_can_be_listed(self) -> None:
        tree = {
            "api_key": "a",
            "sep": MASK,
            "n": {"password": "b"},
            "l": [{"token": HF}],
            "db": "pg://me:hunter2@host",
            "x": "user=me password=***",
            "y": "a=***",
        }
        stored = masked_config(tree)
        assert hidden_fields(stored) == [("api_key",), ("n", "password"), ("l", 0, "token"), ("db",), ("x",)]

    @pytest.mark.parametrize(
        ("path", "variable"),
        [
            (("api_key",), "API_KEY"),
            (("hub", "apiKey"), "API_KEY"),
            (("api_keys", 0), "API_KEYS_0"),
            (("l", 0, "db-password"), "DB_PASSWORD"),
        ],
    )
    def test_a_field_has_a_variable(self, path: tuple[str | int, ...], variable: str) -> None:
        assert variable_of(path) == variable


ENVIRON = {
    "AWS_SECRET_ACCESS_KEY": BASE64,
    "HF_TOKEN": "hf_canary",
    "GITHUB_TOKEN": "github canary",
    "CI_JOB_TOKEN": "canary1",
    "AZURE_DEVOPS_EXT_PAT": "canary2",
    "DB_PASSWORD": "hunter2",
    "MYSQL_PWD": "hunter3",
    "PGPASSWORD": "hunter4",
    "WANDB_API_KEY": HEX40,
    "OPENAI_KEY": OPENAI,
    "DATABASE_URL": "postgres://me:p%40ssword@host/db",
    "HTTPS_PROXY": "http://me:proxypass@proxy:3128",
    "SLASHED_SECRET": "/K7MDENGbPxRfiCY123/bPxRfiCYabcdefgKEY",
}
HARMLESS = {
    "PWD": "/data/me",
    "OLDPWD": "/data/me/work",
    "HOME": "/data/me",
    "USE_AUTH_TOKEN": "true",
    "MY_SECRET": "1",
    "SHORT_PASSWORD": "abc",
    "GOOGLE_APPLICATION_CREDENTIALS": "/data/me/credentials.json",
    "TOKEN_PATH": "/data/me/token",
    "AWS_SHARED_CREDENTIALS_FILE": "/data/me/.aws/credentials",
    "SSH_AUTH_SOCK": "/tmp/ssh-abc/agent.1",
    "TOKENIZERS_PARALLELISM": "false",
    "KEYBOARD": "qwerty",
    "SORT_KEY": "length",
    "MAX_TOKENS": "100000",
    "API_TOKEN": "",
    "EOS_TOKEN": "<|endoftext|>",
    "PAD_TOKEN": "padding",
    "FILE_PAT": "train-*.parquet",
    "VAULT_SECRET": "secrets/vault.json",
    "S3_KEY": "data/imagenet2012train",
}


class TestTexts:
    def test_the_values_of_variables_that_look_like_secrets_are_found(self) -> None:
        found = secret_values(ENVIRON | HARMLESS)
        urls = {"DATABASE_URL": ["p%40ssword", "p@ssword"], "HTTPS_PROXY": ["proxypass"]}
        assert sorted(found) == sorted(text for name, value in ENVIRON.items() for text in urls.get(name, [value]))

    def test_harmless_variables_have_no_secrets(self) -> None:
        assert secret_values(HARMLESS) == []

    def test_the_longest_value_is_hidden_first(self) -> None:
        values = secret_values({"A_TOKEN": "canary", "B_TOKEN": "canary-long"})
        assert values == ["canary-long", "canary"]
        assert masked("a canary-long, a canary", reversed(values)) == "a ***, a ***"

    def test_each_line_of_a_long_secret_is_hidden(self) -> None:
        pem = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkqhkiG9w0BAQEFAASC\nshort\n-----END PRIVATE KEY-----"
        mask = Mask(secret_values({"PRIVATE_KEY": pem}))
        assert mask("line MIIEvQIBADANBgkqhkiG9w0BAQEFAASC end") == "line *** end"

    @given(st.text(min_size=6, max_size=20).filter(lambda text: text.strip() == text and set(text) != {"*"}))
    def test_a_value_is_found_in_the_forms_that_texts_have(self, value: str) -> None:
        mask = Mask([value])
        forms = [value, repr(value)[1:-1], json.dumps(value)[1:-1], quote(value), quote(value, safe=""), quote_plus(value)]
        assert all(value not in mask(f"<{form}>").strip("<>") or value in MASK for form in forms)
        assert all(mask(f"<{form}>") == "<***>" for form in forms if value not in form or form == value)

    def test_a_tree_is_masked_with_its_names(self) -> None:
        tree = {"a": ["x hunter2", 1], "hunter2": ("hunter2",), "n": None}
        assert Mask(["hunter2"]).tree(tree) == {"a": ["x ***", 1], "***": ("***",), "n": None}

    def test_a_tree_without_secrets_is_the_same_object(self) -> None:
        tree = {"a": ["x", 1], "b": ("y",)}
        assert Mask(["hunter2"]).tree(tree) is tree
        assert Mask([]).tree(tree) is tree

    def test_a_mask_has_the_secrets_of_config_and_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_canary")
        assert Mask.of({"api_key": "abcdef"})("abcdef hf_canary") == "*** ***"
        assert os.environ["HF_TOKEN"] == "hf_canary"

    @pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
    @pytest.mark.parametrize("values", [["hunter2"], ["canary", "canary-long"], ["abcabc"], ["aaaaaab", "aaaaaa"], ["two\nlines"]])
    def test_a_value_that_comes_in_pieces_is_hidden(self, size: int, values: list[str]) -> None:
        text = "".join(f"{value}|{value}{value}{value[:-1]}|{value[:3]}\n" for value in values)
        stream = MaskedStream(Mask(values))
        shown = "".join(stream.take(text[at : at + size]) for at in range(0, len(text), size)) + stream.rest()
        assert shown == masked(text, values)

    def test_a_whole_line_does_not_wait(self) -> None:
        assert MaskedStream(Mask(["hunter2"])).take("hun\n") == "hun\n"

    def test_weak_values_are_left_in_what_a_program_reads_again(self) -> None:
        strong = Mask(["postgres", "conv2d", "a long password", "mixed123", HEX40]).of_strong()
        assert strong(f"postgres conv2d a long password mixed123 {HEX40}") == "postgres conv2d *** *** ***"


class TestCommandLine:
    WORDS = (
        "train.py",
        "--api-key=hunter1",
        "--password",
        "hunter2",
        "lr=0.1",
        "+hub.api_key=hunter3",
        "--token",
        HEX40,
        "--max-tokens",
        "100000",
    )

    def test_what_is_given_for_a_secret_is_hidden(self) -> None:
        shown = ["train.py", "--api-key=***", "--password", "***", "lr=0.1", "+hub.api_key=***", "--token", "***", "--max-tokens", "100000"]
        assert masked_argv(self.WORDS, Mask()) == shown

    def test_known_values_are_hidden_wherever_they_stand(self) -> None:
        assert masked_argv(["x", "--note", "my hunter2", "pg://me:pass@host"], Mask(["hunter2"])) == [
            "x",
            "--note",
            "my ***",
            "pg://me:***@host",
        ]

    def test_its_secrets_are_hidden_in_other_texts(self) -> None:
        assert argv_secrets(self.WORDS) == ["hunter1", "hunter2", "hunter3", HEX40]
        assert Mask.of(environ={}, argv=self.WORDS)("hunter1 and hunter2") == "*** and ***"

    def test_an_option_without_a_value_takes_no_other_option_for_one(self) -> None:
        assert masked_argv(["--password", "--verbose", "file"], Mask()) == ["--password", "--verbose", "file"]


@configclass
class Hub(ConfigBase):
    access_token: str = "none"
    name: str = "hub"


@configclass
class Typed(ConfigBase):
    client_secret: str
    hubs: list[Hub]
    by_name: dict[str, Hub]
    tokenizer: str = "bpe"
    db_password: Stateless[str] = "none"


def typed(text: str) -> Typed:
    return Typed(client_secret=text, hubs=[Hub(access_token=text)], by_name={"a": Hub(access_token=text)}, db_password=text)


def free(text: str) -> Config:
    return Config({"lr": 0.1, "api_key": text, "n": {"db.password": text}, "hubs": [{"token": f"{text}{HEX40}"}, [f"pg://me:{text}@host"]]})


MAKERS = [free, lambda text: free(text).asdict(), typed, lambda text: {"inner": typed(text), "seed": 1}]


class TestIdentity:
    @pytest.mark.parametrize(
        ("config", "key"),
        [
            ({}, "44136fa3"),
            ({"arch": "ResNet18", "lr": 0.001}, "4160a47e"),
            (
                {"tokenizer": {"pad_token": "<pad>", "eos_token": "</s>", "max_tokens": 512}, "image_key": "image", "key_size": 64},
                "eba04c4c",
            ),
            ({"url": "https://example.org/data.zip", "author": "Ann", "monkey": [1, 2.5, None]}, "3969a56e"),
        ],
    )
    def test_a_config_without_secrets_has_the_key_that_it_always_had(self, config: dict[str, Any], key: str) -> None:
        assert key_of(config) == group_of(config) == key

    @pytest.mark.parametrize("make", MAKERS)
    def test_another_secret_makes_no_other_run(self, make: Callable[[str], Any]) -> None:
        assert key_of(make("first")) == key_of(make("second"))
        assert group_of(make("first")) == group_of(make("second"))

    @pytest.mark.parametrize("make", MAKERS)
    def test_the_key_can_be_told_from_what_is_stored(self, make: Callable[[str], Any]) -> None:
        store, config = Store(None), make("canary")
        key = store.configs.add(config)
        assert key == key_of(config) == key_of(make("***"))
        assert "canary" not in json.dumps(store.configs.record(key))
        stored = store.configs[key].asdict()
        assert store.configs.add(Typed(**stored) if isinstance(config, Typed) else stored) == key
        assert store.configs.get_key(make("another")) == key

    def test_a_secret_that_is_there_is_another_config_than_none(self) -> None:
        assert len({key_of({"api_key": value}) for value in (None, "", "a", 5)} | {key_of({})}) == 5

    def test_the_config_in_the_program_has_its_secrets(self) -> None:
        config = typed("canary")
        Store(None).configs.add(config)
        assert (config.client_secret, config.hubs[0].access_token, config.db_password) == ("canary",) * 3

    def test_a_credential_under_a_name_that_tells_nothing_is_not_stored(self) -> None:
        with pytest.raises(ConfigError) as error:
            Store(None).configs.add({"hub": HF})
        assert str(error.value).splitlines() == [
            "a problem in the config",
            "  wrong   hub: looks like a credential, and its name does not say so",
            "  try     values are stored; give it a name such as `api_key`, and `***` is stored for it",
        ]

    def test_a_secret_in_another_field_too_is_not_stored(self) -> None:
        with pytest.raises(ConfigError, match="page: holds the secret of another field"):
            Store(None).configs.add({"api_key": HEX40, "page": f"https://host/{HEX40}"})

    def test_the_secret_of_a_variable_is_not_stored(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOME_API_KEY", HEX40)
        with pytest.raises(ConfigError, match="commit: holds the secret of the environment variable SOME_API_KEY"):
            Store(None).configs.add_many([{"commit": HEX40}])

    def test_a_weak_password_takes_no_other_field_out_of_a_config(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DB_PASSWORD", "resnet18")
        store = Store(None)
        assert store.configs[store.configs.add({"arch": "resnet18", "password": "resnet18"})] == {"arch": "resnet18", "password": "***"}
