"""Secrets are recognized, left out of stored configs, and masked in text."""

from __future__ import annotations

import copy
import json
import os
import pickle
import random
from collections.abc import Callable
from string import ascii_letters, ascii_lowercase, digits
from typing import Any
from urllib.parse import quote, quote_plus

import pytest
from hypothesis import given
from hypothesis import strategies as st

from trainmaster.config import Config, ConfigBase, Secret, Stateless, canonical, configclass, group_of, key_of
from trainmaster.config.config import with_secrets
from trainmaster.config.declared_secrets import declared_secrets, masked_config, masked_secret_paths, refuse_undeclared, secret_texts
from trainmaster.config.masking import Mask, MaskedStream, argv_secrets, masked, masked_argv, secret_values
from trainmaster.config.secret_patterns import (
    MASK,
    environment_variable,
    is_like_credential,
    masked_by_name,
    masked_value,
)
from trainmaster.errors import ConfigError, StoreDamagedError
from trainmaster.store import Store
from trainmaster.store.checksummed_json import record_bytes

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
    *[("group_key", "subject"), ("key", "observation.state.joint_7")],
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
    ("hub", f"log in with {HF}", "log in with ***"),
]


class TestWhatIsASecret:
    @pytest.mark.parametrize(("name", "value"), SECRETS)
    def test_a_secret_is_masked(self, name: str, value: str) -> None:
        assert masked_value(name, value) == MASK

    @pytest.mark.parametrize(("name", "value"), NO_SECRETS)
    def test_harmless_text_is_not_masked(self, name: str, value: str) -> None:
        assert masked_value(name, value) == value

    @pytest.mark.parametrize(("name", "value", "stored"), PARTLY)
    def test_only_the_secret_in_an_address_is_masked(self, name: str, value: str, stored: str) -> None:
        assert masked_value(name, value) == stored

    @pytest.mark.parametrize(("name", "value"), [*SECRETS, *((name, value) for name, value, _ in PARTLY)])
    def test_masking_twice_changes_nothing(self, name: str, value: str) -> None:
        once = masked_value(name, value)
        assert masked_value(name, once) == once

    def test_a_credential_is_recognized_by_its_form(self) -> None:
        assert is_like_credential(HEX40)
        assert not is_like_credential("abc123")
        assert not is_like_credential("two words 0123456789abcdef")


class TestTrees:
    def test_only_text_is_masked(self) -> None:
        tree = {"password": 5, "api_key": None, "secret": True, "token": 1.5}
        assert masked_by_name(tree) == tree

    def test_a_tree_without_secrets_stays_the_same(self) -> None:
        tree = {"a": [1, {"b": "x"}], "tokenizer": {"pad_token": "<pad>"}}
        assert masked_by_name(tree) == tree

    def test_values_below_a_secret_name_are_masked(self) -> None:
        tree = {"api_keys": ["a", "b", 3], "credentials": {"user": "me", "deep": {"x": "y"}}, "data": ["a"]}
        hidden = {"api_keys": [MASK, MASK, 3], "credentials": {"user": MASK, "deep": {"x": MASK}}, "data": ["a"]}
        assert masked_by_name(tree) == hidden

    @pytest.mark.parametrize(
        "signs", [f"{ascii_letters}{digits}", f"{ascii_letters}{digits}-_", f"{ascii_lowercase}{digits}", "0123456789abcdef"]
    )
    def test_random_characters_look_like_a_credential(self, signs: str) -> None:
        draw = random.Random(0)
        found = [is_like_credential("".join(draw.choices(signs, k=40))) for _ in range(300)]
        assert sum(found) >= 295

    @pytest.mark.parametrize(
        ("path", "variable"),
        [
            (("api_key",), "API_KEY"),
            (("hub", "apiKey"), "API_KEY"),
            (("api_keys", 0), "API_KEYS_0"),
            (("l", 0, "db-password"), "DB_PASSWORD"),
        ],
    )
    def test_the_environment_variable_of_a_field_is_derived_from_its_key(self, path: tuple[str | int, ...], variable: str) -> None:
        assert environment_variable(path) == variable


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
    def test_a_value_is_found_in_all_forms_in_which_it_is_written(self, value: str) -> None:
        mask = Mask([value])
        forms = [value, repr(value)[1:-1], json.dumps(value)[1:-1], quote(value), quote(value, safe=""), quote_plus(value)]
        assert all(value not in mask(f"<{form}>").strip("<>") or value in MASK for form in forms)
        assert all(mask(f"<{form}>") == "<***>" for form in forms if value not in form or form == value)

    def test_names_and_values_of_a_tree_are_masked(self) -> None:
        tree = {"a": ["x hunter2", 1], "hunter2": ("hunter2",), "n": None}
        assert Mask(["hunter2"]).tree(tree) == {"a": ["x ***", 1], "***": ("***",), "n": None}

    def test_a_tree_without_secrets_is_the_same_object(self) -> None:
        tree = {"a": ["x", 1], "b": ("y",)}
        assert Mask(["hunter2"]).tree(tree) is tree
        assert Mask([]).tree(tree) is tree

    def test_a_mask_contains_the_secrets_of_the_config_and_the_environment(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("HF_TOKEN", "hf_canary")
        assert Mask.of(["abcdef"])("abcdef hf_canary") == "*** ***"
        assert os.environ["HF_TOKEN"] == "hf_canary"

    @pytest.mark.parametrize("size", [1, 2, 3, 5, 8])
    @pytest.mark.parametrize("values", [["hunter2"], ["canary", "canary-long"], ["abcabc"], ["aaaaaab", "aaaaaa"], ["two\nlines"]])
    def test_a_value_that_arrives_in_pieces_is_masked(self, size: int, values: list[str]) -> None:
        text = "".join(f"{value}|{value}{value}{value[:-1]}|{value[:3]}\n" for value in values)
        stream = MaskedStream(Mask(values))
        shown = "".join(stream.take(text[at : at + size]) for at in range(0, len(text), size)) + stream.rest()
        assert shown == masked(text, values)

    def test_a_complete_line_is_not_held_back(self) -> None:
        assert MaskedStream(Mask(["hunter2"])).take("hun\n") == "hun\n"

    def test_weak_values_are_kept_in_data_that_a_program_reads_again(self) -> None:
        strong = Mask(["postgres", "conv2d", "a long password", "mixed123", HEX40]).only_strong()
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

    def test_the_values_of_secret_options_are_masked(self) -> None:
        shown = ["train.py", "--api-key=***", "--password", "***", "lr=0.1", "+hub.api_key=***", "--token", "***", "--max-tokens", "100000"]
        assert masked_argv(self.WORDS, Mask()) == shown

    def test_known_values_are_masked_everywhere(self) -> None:
        assert masked_argv(["x", "--note", "my hunter2", "pg://me:pass@host"], Mask(["hunter2"])) == [
            "x",
            "--note",
            "my ***",
            "pg://me:***@host",
        ]

    def test_secrets_of_the_command_line_are_masked_in_other_texts(self) -> None:
        assert argv_secrets(self.WORDS) == ["hunter1", "hunter2", "hunter3", HEX40]
        assert Mask.of(environ={}, argv=self.WORDS)("hunter1 and hunter2") == "*** and ***"

    def test_an_option_without_a_value_does_not_use_the_next_option(self) -> None:
        assert masked_argv(["--password", "--verbose", "file"], Mask()) == ["--password", "--verbose", "file"]


@configclass
class Hub(ConfigBase):
    access_token: Secret[str] = "none"
    name: str = "hub"


@configclass
class Typed(ConfigBase):
    client_secret: Secret[str]
    hubs: list[Hub]
    by_name: dict[str, Hub]
    tokenizer: str = "bpe"
    logins: Secret[dict[str, str] | None] = None


def typed(text: str) -> Typed:
    return Typed(client_secret=text, hubs=[Hub(access_token=text)], by_name={"a": Hub(access_token=text)}, logins={"me": text})


KEYS = ("api_key", "n.db.password", "hubs.0.token", "mirrors", "absent", "lr.absent", "hubs.7.token")


def free(text: str) -> Config:
    values = {"lr": 0.1, "api_key": text, "n": {"db.password": text}, "hubs": [{"token": text, "name": "a"}], "mirrors": [text, [text]]}
    return with_secrets(values, KEYS)


MAKERS = [free, typed, lambda text: {"inner": typed(text), "seed": 1}]


class TestDeclared:
    def test_the_secrets_of_a_config_are_those_that_were_declared(self) -> None:
        assert declared_secrets(free("a")) == {"api_key": "a", "n.db.password": "a", "hubs.0.token": "a", "mirrors": ["a", ["a"]]}
        assert list(declared_secrets(typed("a"))) == ["client_secret", "hubs.0.access_token", "by_name.a.access_token", "logins"]
        assert list(declared_secrets({"inner": Hub()})) == ["inner.access_token"]
        assert declared_secrets({"password": "a", "api_key": HF}) == {}

    def test_a_masked_config_contains_no_secret(self) -> None:
        hidden = {"lr": 0.1, "api_key": MASK, "n": {"db": {"password": MASK}}, "hubs": [{"token": MASK, "name": "a"}]}
        assert masked_config(free("a")) == {**hidden, "mirrors": [MASK, [MASK]]}
        assert masked_config(typed("a"))["hubs"] == [{"access_token": MASK, "name": "hub"}]
        assert masked_config(typed("a"))["logins"] == {"me": MASK}

    def test_none_and_empty_text_are_not_masked(self) -> None:
        assert masked_config(with_secrets({"a": None, "b": "", "c": [None, ""]}, ("a", "b", "c"))) == {"a": None, "b": "", "c": [None, ""]}

    @pytest.mark.parametrize("make", MAKERS)
    def test_secret_texts_are_the_texts_of_the_declared_secrets(self, make: Callable[[str], Any]) -> None:
        assert secret_texts(make("hunter2!")) == ["hunter2!"]
        assert secret_texts(make("tiny")) == []

    def test_masked_paths_are_found_in_a_stored_config(self) -> None:
        assert masked_secret_paths(free("a")) == []
        assert set(masked_secret_paths(free(MASK))) == {
            *(("api_key",), ("n", "db", "password"), ("hubs", "0", "token"), ("mirrors", 0), ("mirrors", 1, 0))
        }
        assert masked_secret_paths({"api_key": MASK}) == []

    @pytest.mark.parametrize("annotation", [int, float | None, list[int], dict[str, Any], Any, Hub, list, str | int])
    def test_only_text_can_be_declared_in_a_class(self, annotation: Any) -> None:
        with pytest.raises(ConfigError, match=r"x: `Secret\[...\]` can only wrap text"):
            configclass(type("Wrong", (ConfigBase,), {"__annotations__": {"x": Secret[annotation]}, "__module__": __name__}))

    @pytest.mark.parametrize("change", [Config.clone, Config.copy, copy.deepcopy, lambda config: pickle.loads(pickle.dumps(config))])
    def test_a_copy_has_the_same_secrets(self, change: Callable[[Config], Any]) -> None:
        config = free("a")
        assert declared_secrets(change(config)) == declared_secrets(config)

    def test_a_config_that_is_changed_or_merged_keeps_its_secrets(self) -> None:
        config = with_secrets({"a": "x"}, ["a"])
        filled, updated = Config(), Config({"a": 1})
        filled.fill(config)
        updated.update(config)
        for each in (config.override("a=y"), filled, updated, config | {"b": 1}, Config({"b": 1}) | config):
            assert list(declared_secrets(each)) == ["a"]


class TestRefused:
    @pytest.mark.parametrize(
        "name",
        [
            *("password", "api_key", "access_token", "auth_token", "secret_key", "private_key"),
            *("db_password", "openai_api_key", "apiKey", "API_KEY", "apikey", "api-key", "password2"),
        ],
    )
    def test_text_under_an_unmistakable_name_is_refused_until_it_is_declared(self, name: str) -> None:
        for config, key in (({name: "abc"}, name), ({"hub": {name: "abc"}}, f"hub.{name}"), ({name: ["abc"]}, name)):
            with pytest.raises(ConfigError) as error:
                refuse_undeclared(config)
            assert str(error.value).splitlines() == [
                "a problem in the config",
                f"  wrong   {key}: looks like a secret, judging by its name",
                "  why     configs are stored in plain text",
                f'  try     pass the manager `secrets=("{key}",)` to store `***` instead, or `public=("{key}",)` if it is not a secret',
            ]
            refuse_undeclared(with_secrets(config, [key]))
            refuse_undeclared(config, public=[key])

    @pytest.mark.parametrize(
        "value", [HF, GITHUB, OPENAI, JWT, "AKIAIOSFODNN7EXAMPLE", "-----BEGIN RSA PRIVATE KEY-----\nabc", f"use {HF}!"]
    )
    def test_a_well_known_token_is_refused_under_any_name(self, value: str) -> None:
        with pytest.raises(ConfigError, match=r"a\.0\.hub: looks like a secret: it has the form of a token"):
            refuse_undeclared({"a": [{"hub": value}]})

    @pytest.mark.parametrize(("name", "value"), [(name, value) for name, value, _ in PARTLY[:5]])
    def test_a_password_in_an_address_is_refused(self, name: str, value: str) -> None:
        with pytest.raises(ConfigError, match=f"{name}: looks like a secret: it has a password in it"):
            refuse_undeclared({name: value})

    @pytest.mark.parametrize(
        ("name", "value"),
        [
            *(
                ("secret", "cat"),
                ("token", "abcd1234efgh5678"),
                ("tokenizer", "bert-base"),
                ("rotary_key", "abc"),
                ("client_secret", "abc"),
            ),
            *(("commit", HEX40), ("cache_key", HEX40), ("model", "sk-learn-RandomForestClassifier2"), ("token", "<|im_start|>")),
            *(("password", ""), ("api_key", MASK), ("api_key", "${API_KEY}"), ("private_key", "~/.ssh/id_rsa"), ("password", "none")),
            *(("password", None), ("api_key", 5), ("password_length", "12"), ("api_key_name", "x"), ("data", "/data/sk-ImageNet2012-224")),
        ],
    )
    def test_ambiguous_text_is_stored(self, name: str, value: Any) -> None:
        refuse_undeclared({name: value, "group": {name: [value]}})

    def test_a_dict_that_was_added_to_a_list_of_typed_configs_is_checked(self) -> None:
        @configclass
        class Login(ConfigBase):
            password: Secret[str] = ""

        @configclass
        class Logins(ConfigBase):
            many: list[Login] = []

        config = Logins()
        config.many.append({"password": "hunter22xx"})  # type: ignore[arg-type]
        with pytest.raises(ConfigError, match=r"many\.0\.password"):
            Store(None).configs.add(config)

    def test_a_typed_config_with_an_undeclared_secret_is_refused(self) -> None:
        @configclass
        class Login(ConfigBase):
            db_password: Stateless[str] = "none"

        refuse_undeclared(Login())
        refuse_undeclared(typed("canary"))
        with pytest.raises(ConfigError) as error:
            refuse_undeclared({"login": Login(), "hub": Config({"db_password": "abc"})})
        assert "hub.db_password" in str(error.value)
        with pytest.raises(ConfigError, match=r"annotate it `Secret\[str\]` .* or `public=\(\"db_password\",\)`"):
            refuse_undeclared(Login(db_password="abc"))
        refuse_undeclared(Login(db_password="abc"), public=("db_password",))

    def test_a_secret_that_is_not_text_is_refused(self) -> None:
        with pytest.raises(ConfigError, match="pin: is declared a secret, but is not text"):
            refuse_undeclared(with_secrets({"pin": 1234}, ["pin"]))


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
    def test_the_key_of_a_config_without_secrets_has_never_changed(self, config: dict[str, Any], key: str) -> None:
        assert key_of(config) == group_of(config) == key

    @pytest.mark.parametrize(("name", "value"), [*SECRETS, *((name, value) for name, value, _ in PARTLY)])
    def test_no_key_depends_on_the_list_of_secret_names(self, name: str, value: str) -> None:
        assert canonical({name: value}) == json.dumps({name: value}, ensure_ascii=False, separators=(",", ":"))
        assert key_of({name: value}) != key_of({name: f"{value}2"})

    def test_undeclared_values_under_a_secret_name_change_the_key(self) -> None:
        assert key_of({"secret": "cat"}) != key_of({"secret": "dog"})

    @pytest.mark.parametrize("make", MAKERS)
    def test_a_different_secret_does_not_change_the_key(self, make: Callable[[str], Any]) -> None:
        assert key_of(make("first")) == key_of(make("second"))
        assert group_of(make("first")) == group_of(make("second"))

    @pytest.mark.parametrize("make", MAKERS)
    def test_the_key_can_be_computed_from_the_stored_config(self, make: Callable[[str], Any]) -> None:
        store, config = Store(None), make("canary")
        key = store.configs.add(config)
        assert key == key_of(config) == key_of(make("***"))
        assert "canary" not in json.dumps(store.configs.record(key))
        stored = store.configs[key]
        assert store.configs.add(Typed(**stored) if isinstance(config, Typed) else stored) == key
        assert store.configs.get_key(make("another")) == key
        assert declared_secrets(stored).keys() == (
            declared_secrets(config).keys() if not isinstance(config, dict) or "lr" in config else set()
        )
        assert [declared_secrets(each) for _, each in store.select()] == [declared_secrets(stored)]  # `select` may read the index

    def test_a_missing_secret_does_not_change_the_key(self) -> None:
        keys = ("api_key", "hub.password")
        values = [
            {},
            {"api_key": None},
            {"api_key": "a"},
            {"api_key": ""},
            {"hub.password": "b"},
            {"api_key": "a", "hub": {"password": None}},
        ]
        store = Store(None)
        found = [store.configs.add(with_secrets({"lr": 0.1, **each}, keys)) for each in values]
        assert set(found) == {key_of({"lr": 0.1})}
        assert Hub(access_token="a").key == Hub().key

    @pytest.mark.parametrize("value", [None, "", "abc"])
    def test_a_stored_config_with_a_secret_can_be_read_again(self, value: str | None) -> None:
        store = Store(None)
        config = with_secrets({"lr": 0.1, "api_key": value, "hub": {"password": value}}, ("api_key", "hub.password"))
        assert store.configs[store.configs.add(config)] == masked_config(config)
        assert store.verify() == []

    def test_a_record_whose_list_of_secrets_was_edited_is_damaged(self) -> None:
        store = Store(None)
        key = store.configs.add(with_secrets({"lr": 0.1, "api_key": "abc"}, ["api_key"]))
        path = f"configs/{key[:2]}/{key}.json"
        for wrong in ([], ["lr"], ["api_key", 5], "api_key"):
            record = {**store.configs.record(key), "secrets": wrong}
            data = store.files.read(path)
            store.files.replace(path, record_bytes(record))
            with pytest.raises(StoreDamagedError):
                store.configs[key]
            store.files.replace(path, data)

    def test_the_config_in_the_program_has_its_secrets(self) -> None:
        config = typed("canary")
        Store(None).configs.add(config)
        assert (config.client_secret, config.hubs[0].access_token, config.logins) == ("canary", "canary", {"me": "canary"})

    def test_a_store_refuses_undeclared_secrets(self) -> None:
        store = Store(None)
        for config in ({"hub": HF}, {"password": "abc"}):
            with pytest.raises(ConfigError, match="looks like a secret"):
                store.configs.add(config)
            with pytest.raises(ConfigError, match="looks like a secret"):
                store.configs.add_many([{"lr": 0.1}, config])
        assert list(store.configs.values()) == [{"lr": 0.1}]
        key = store.configs.add({"password": "abc"}, public=("password",))
        assert (key, store.configs[key]) == (key_of({"password": "abc"}), {"password": "abc"})

    def test_a_secret_that_also_occurs_in_another_field_is_refused(self) -> None:
        config = with_secrets({"api_key": HEX40, "page": f"https://host/{HEX40}"}, ["api_key"])
        with pytest.raises(ConfigError, match="page: contains the secret of another field"):
            Store(None).configs.add(config)
        assert Store(None).configs.add(config, public=["page"])

    def test_the_secret_of_an_environment_variable_is_refused(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("SOME_API_KEY", HEX40)
        with pytest.raises(ConfigError, match="commit: contains the secret of the environment variable SOME_API_KEY"):
            Store(None).configs.add_many([{"commit": HEX40}])

    def test_a_weak_password_does_not_mask_other_fields(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setenv("DB_PASSWORD", "resnet18")
        store = Store(None)
        config = with_secrets({"arch": "resnet18", "password": "resnet18"}, ["password"])
        assert store.configs[store.configs.add(config)] == {"arch": "resnet18", "password": "***"}
