"""Credentials never appear in errors, whatever a backend says and however the error is shown (S4)."""

from __future__ import annotations

import base64
import traceback
from collections.abc import Sequence
from pathlib import Path
from urllib.parse import quote

import pytest
from hypothesis import given
from hypothesis import strategies as st
from structlog.testing import capture_logs

from minflinkd.runtime.errors import error_info
from minflinkd.storage.failures import Failures
from minflinkd.storage.interface import StorageError, StorageUnavailable
from minflinkd.storage.masking import Mask, masked, secrets_of
from minflinkd.storage.options import CommonOptions
from minflinkd.storage.resilient import ResilientStorage
from minflinkd_local import LocalStorage

SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYzzzzzzzKEY"
AZURE = "Eby8vdM02xNOcqFlqUwJPLlmEtlCDXJ1OUzFT50uSRZ6IFsuFq2UVErCz4I6tq/K1SZFPTOtr/KBHBeksoGMGw=="
KEY_ID = "AKIAIOSFODNN7EXAMPLE"
SIGNATURE = "aeeed9bbccd4d02ee5c0109b86d86835f995330da4c265957d157751f604d404"

UNCONFIGURED: Sequence[tuple[str, str]] = (  # a text, and what must not be left of it: no option holds the value
    (f"http://tester:{SECRET.replace('/', '_')}@127.0.0.1:9000/b/k refused", SECRET.replace("/", "_")),
    (f"DefaultEndpointsProtocol=https;AccountName=a;AccountKey={AZURE};EndpointSuffix=core.windows.net", AZURE),
    ("https://a.blob.core.windows.net/c/b?sv=2021-08-06&sr=b&sig=Z%2FRHIX5Xcg0Mq2rqI3OlWTj%3D", "Z%2FRHIX5"),
    (f"https://b.s3.amazonaws.com/k?X-Amz-Credential={KEY_ID}%2F20260101&X-Amz-Signature={SIGNATURE}", SIGNATURE),
    (f"https://b.s3.amazonaws.com/k?X-Amz-Credential={KEY_ID}%2F20260101&X-Amz-Date=1", KEY_ID),
    ("X-Amz-Security-Token=FwoGZXIvYXdzEBYaDHqa0AP1EXAMPLETOKEN&x=1", "FwoGZXIvYXdz"),
    ("Authorization: Bearer ya29.a0AfH6SMBx-EXAMPLE_token-1234567890", "ya29"),
    ("{'Authorization': 'Bearer ya29.a0AfH6SMBx-EXAMPLE', 'Host': 'x'}", "ya29"),
    (f"AWS4-HMAC-SHA256 Credential={KEY_ID}/20260101/s3, SignedHeaders=host, Signature={SIGNATURE}", SIGNATURE),
    (f"Authorization: SharedKey account:{AZURE}", AZURE),
    ('{"private_key_id": "abc", "private_key": "-----BEGIN PRIVATE KEY-----\\nMIIEvQIB\\n"}', "MIIEvQIB"),
    ("-----BEGIN RSA PRIVATE KEY-----\nMIIEowIBAAKCAQEA\n-----END RSA PRIVATE KEY-----", "MIIEowIBAAKCAQEA"),
    ("<Error><Code>SignatureDoesNotMatch</Code><AWSAccessKeyId>tester</AWSAccessKeyId></Error>", "tester"),
    ("eyJhbGciOiJSUzI1NiIs.eyJpc3MiOiJodHRwczovL2.c2lnbmF0dXJl", "c2lnbmF0dXJl"),
    ("POST body: grant_type=x&client_secret=s3cr3t-value&refresh_token=1//0gabcdef", "s3cr3t-value"),
    ("POST body: grant_type=x&client_secret=s3cr3t-value&refresh_token=1//0gabcdef", "0gabcdef"),
)


@pytest.mark.parametrize(("text", "secret"), UNCONFIGURED)
def test_what_looks_like_a_credential_is_hidden(text: str, secret: str) -> None:
    shown = Mask()(text)
    assert secret not in shown
    assert "******" in shown


@pytest.mark.parametrize(
    "text",
    [
        "s3: bucket/jobs/1/chk-3/_metadata: SlowDown: please reduce your request rate",
        "file: /var/lib/minflinkd/x: No space left on device",
        "abfs: container@account.dfs.core.windows.net/x: 503",
        "hdfs://host:8020/a/b",
        "s3: the token has expired, signature version 4",
        "http://127.0.0.1:9000/bucket?uploadId=1&partNumber=3",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    assert Mask()(text) == text


@given(st.text(st.characters(exclude_categories=["Cs"]), min_size=6, max_size=60))
def test_a_configured_secret_is_hidden_in_every_form_in_which_it_travels(secret: str) -> None:
    mask = Mask([secret])
    forms = (secret, quote(secret, safe=""), repr(secret)[1:-1], base64.b64encode(secret.encode()).decode())
    for form in forms:
        assert form not in mask(f"a\n{form}\nb").replace("******", "")


def test_the_longest_of_two_secrets_is_hidden_whole() -> None:
    assert Mask(["correct", "correct-horse"])("x=correct-horse") == "x=******"


def test_secrets_are_the_values_of_options_and_variables_with_telling_names() -> None:
    options = {"s3.secret-key": SECRET, "s3.access-key": "tester", "s3.region": "us-east-1", "az.sas-token": "?sv=1"}
    environment = {"AWS_SESSION_TOKEN": "FwoGZXIv", "HOME": "/home/etl", "AZURE_STORAGE_CONNECTION_STRING": "Account"}
    assert secrets_of(options, environment) == {SECRET, "tester", "FwoGZXIv", "Account"}  # nothing short


class Sdk(Exception):
    pass


def failing(secret: str) -> StorageError:
    """Return an error as a backend raises it. Its cause is the SDK's error, which has another one as its own cause."""
    both = ExceptionGroup("two of them", [Sdk(f"key {secret}"), ValueError("harmless")])
    both.__context__ = Sdk(f"signing with {secret}")
    both.add_note(f"seen with {secret}")
    outer = Sdk(f"https://u:{secret}@host/")
    outer.__cause__ = both
    failure = StorageUnavailable(f"s3: b/k: {outer}", hint=f"is {secret} right?")
    failure.__cause__ = outer
    return failure


def everything(error: BaseException) -> str:
    """Return all that logs, answers and consoles show."""
    info = error_info(error, with_traceback=True)
    return "".join([*traceback.format_exception(error), str(error), repr(error), str(info), info.message, info.hint])


def test_neither_an_error_nor_what_caused_it_shows_a_secret() -> None:
    failures = Failures("s3", Mask([SECRET]))
    assert SECRET in everything(failing(SECRET))
    shown = failures.of("b/k", failing(SECRET))
    text = everything(shown)
    assert SECRET not in text
    for kept in ("s3: b/k", "https://", "host/", "harmless", "HiddenCause"):
        assert kept in text


def test_a_foreign_error_is_named_with_scheme_path_and_cause_and_without_a_secret() -> None:
    shown = Failures("s3", Mask([SECRET])).of("b/k", Sdk(f"key {SECRET}"))
    assert type(shown) is StorageError
    assert shown.message == "s3: b/k: Sdk: key ******"
    assert SECRET not in everything(shown)


def test_a_cause_without_a_secret_is_kept_as_it_is() -> None:
    cause = Sdk("plain")
    assert Failures("s3", Mask([SECRET])).of("b/k", cause).__cause__ is cause


class Leaking(LocalStorage):
    async def stat(self, path: str) -> object:  # type: ignore[override]
        raise ConnectionError(f"PUT http://x/?X-Amz-Signature={SIGNATURE} with {SECRET}")


@pytest.mark.looptime
async def test_no_secret_reaches_a_log_or_a_caller(tmp_path: Path) -> None:
    storage = ResilientStorage(Leaking(), CommonOptions(retries=2), Mask([SECRET]))
    with capture_logs() as logs, pytest.raises(StorageUnavailable) as caught:
        await storage.stat(f"{tmp_path}/x")
    assert len(logs) == 2
    shown = str(logs) + everything(caught.value)
    assert SECRET not in shown
    assert SIGNATURE not in shown


def test_values_are_masked_at_any_depth() -> None:
    """Params of a job may be nested, and its texts may hold URLs and configurations with passwords in them (E40)."""
    shown = masked(
        {
            "minutes": 60,
            "db": {"user": "me", "password": "hunter2", "more": [{"api-key": "hunter2"}, "fine"]},
            "url": "jdbc:postgresql://host/db?user=me&password=hunter2",
            "jaas": 'org.apache.kafka.PlainLoginModule required username="me" password="hunter2";',
            "link": "https://me:hunter2@host/x?sig=hunter2",
            "list": ["https://me:hunter2@host/", {"secret": "hunter2"}],
            "tokens": ["hunter2"],
        }
    )
    assert "hunter2" not in str(shown)
    assert shown["minutes"] == "60"
    assert shown["db"].startswith("{'user': 'me', 'password': '******'")
    assert 'username="me"' in shown["jaas"]
