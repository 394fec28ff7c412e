"""Where the API server is, and who the daemon is there."""

from __future__ import annotations

from pathlib import Path

import pytest

from minflinkd.config.kubernetes_options import Kubernetes
from minflinkd.resourcemanager.kubernetes.access import Credentials, UnusableAccess, access_of

IN_POD = {"KUBERNETES_SERVICE_HOST": "10.0.0.1", "KUBERNETES_SERVICE_PORT": "443"}


@pytest.fixture
def account(tmp_path: Path) -> Path:
    """What a Pod finds of its service account."""
    for name, text in (("token", "abc\n"), ("namespace", "flows"), ("ca.crt", "")):
        (tmp_path / name).write_text(text)
    return tmp_path


def test_a_pod_finds_everything_around_it(account: Path) -> None:
    """No option is needed (R50)."""
    access = access_of(Kubernetes(), IN_POD, account)
    assert (access.server, access.namespace) == ("https://10.0.0.1:443", "flows")
    assert (access.token_file, access.ca_file) == (account / "token", account / "ca.crt")
    assert access_of(Kubernetes(), IN_POD | {"KUBERNETES_SERVICE_HOST": "fd00::1"}, account).server == (
        "https://[fd00::1]:443"
    )


def test_options_come_first(account: Path, tmp_path: Path) -> None:
    """For a daemon outside of the cluster (R50)."""
    options = Kubernetes(api_server="https://k8s:6443/", namespace="n", token_file="/t", ca_file="/c")
    access = access_of(options, IN_POD, account)
    assert (access.server, access.namespace, access.token_file, access.ca_file) == (
        "https://k8s:6443", "n", Path("/t"), Path("/c")
    )  # fmt: skip


@pytest.mark.parametrize(
    ("options", "environ", "fault"),
    [
        (Kubernetes(), {}, "no API server is known"),
        (Kubernetes(api_server="http://10.0.0.1"), {}, "has no TLS"),
        (Kubernetes(api_server="10.0.0.1:6443"), {}, "is no URL"),
        (Kubernetes(api_server="https://10.0.0.1/api"), {}, "is no URL"),
    ],
)
def test_what_cannot_be_used_is_refused(
    options: Kubernetes, environ: dict[str, str], fault: str, account: Path
) -> None:
    """Above all a token that others could read on the way (R50)."""
    with pytest.raises(UnusableAccess, match=fault):
        access_of(options, environ, account)


def test_without_a_namespace_there_is_no_access(tmp_path: Path) -> None:
    """Pods would be looked for in another one (R50)."""
    with pytest.raises(UnusableAccess, match="the namespace is not known"):
        access_of(Kubernetes(api_server="https://k8s"), {}, tmp_path)


async def test_a_refused_token_is_read_again(account: Path) -> None:
    """Otherwise it is kept for a while (R50)."""
    credentials = Credentials(access_of(Kubernetes(), IN_POD, account))
    assert await credentials.headers() == {"Authorization": "Bearer abc"}
    (account / "token").write_text("def")
    assert await credentials.headers() == {"Authorization": "Bearer abc"}
    credentials.refused()
    assert await credentials.headers() == {"Authorization": "Bearer def"}


@pytest.mark.parametrize("token", [None, "", "two\nlines"])
async def test_a_token_that_cannot_be_read_is_an_error_that_says_where_it_comes_from(
    account: Path, token: str | None
) -> None:
    """A line break in it would be one in the header (R50)."""
    (account / "token").unlink()
    access = access_of(Kubernetes(token_file=str(account / "token")), IN_POD, account)
    if token is not None:
        (account / "token").write_text(token)
    with pytest.raises(UnusableAccess, match="token"):
        await Credentials(access).headers()


async def test_a_ca_that_cannot_be_read_is_an_error_that_names_the_file(account: Path) -> None:
    """The server could not be checked (R50)."""
    with pytest.raises(UnusableAccess, match=r"ca\.crt.*cannot be read"):
        await Credentials(access_of(Kubernetes(), IN_POD, account)).tls()
