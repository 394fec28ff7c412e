"""`minflinkd tls init`: the files that it makes (E42)."""

from __future__ import annotations

import json
import ssl
import stat
from pathlib import Path

import pytest
from click.testing import CliRunner
from cryptography import x509

from minflinkd.cli.main import main
from minflinkd.config import load_config
from minflinkd.config.tls_options import tls_of
from minflinkd.runtime.tls import Tls, TlsFiles


def init(directory: Path, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["tls", "init", str(directory), *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def mode(file: Path) -> int:
    return stat.S_IMODE(file.stat().st_mode)


def test_it_makes_a_ca_and_certificates_whose_keys_are_for_their_owner_only(tmp_path: Path) -> None:
    """E42."""
    init(tmp_path / "tls", "--host", "a.example", "--host", "10.0.0.7")
    files = {file.name: mode(file) for file in (tmp_path / "tls").iterdir()}
    assert files == {
        "ca.pem": 0o644,
        "ca-key.pem": 0o600,
        "internal.pem": 0o644,
        "internal-key.pem": 0o600,
        "rest.pem": 0o644,
        "rest-key.pem": 0o600,
    }
    assert mode(tmp_path / "tls") == 0o700
    certificate = x509.load_pem_x509_certificate((tmp_path / "tls" / "internal.pem").read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    assert {"localhost", "a.example"} <= set(names.get_values_for_type(x509.DNSName))
    assert {"127.0.0.1", "10.0.0.7"} <= {str(each) for each in names.get_values_for_type(x509.IPAddress)}


def test_what_it_prints_is_a_configuration(tmp_path: Path) -> None:
    """It can be copied into the file, and its files can be used (E42)."""
    printed = init(tmp_path / "tls").partition("\n")[2]
    file = tmp_path / "minflinkd.yaml"
    file.write_text(printed)
    config = load_config(file, {}, {})
    assert tls_of(config.internal_tls) is not None
    assert tls_of(config.rest_tls) is not None


def test_a_second_call_renews_the_certificates_under_the_same_ca(tmp_path: Path) -> None:
    """Clients need no other CA file then (E42)."""
    init(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert json.loads(init(tmp_path, "--json", "--days", "2"))["newCa"] is False
    changed = {name for name, content in before.items() if (tmp_path / name).read_bytes() != content}
    assert changed == {"internal.pem", "internal-key.pem", "rest.pem", "rest-key.pem"}
    Tls(TlsFiles(certificate=tmp_path / "rest.pem", key=tmp_path / "rest-key.pem", ca=tmp_path / "ca.pem"))


@pytest.mark.parametrize("name", ["ca.pem", "ca-key.pem"])
def test_a_ca_that_is_not_whole_is_not_replaced(tmp_path: Path, name: str) -> None:
    """Its certificates may be in use (E42)."""
    init(tmp_path)
    kept = {file.name: file.read_bytes() for file in tmp_path.iterdir() if file.name != name}
    (tmp_path / name).unlink()
    result = CliRunner().invoke(main, ["tls", "init", str(tmp_path)])
    assert result.exit_code == 2
    assert name in result.output
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == kept


def test_a_strict_client_trusts_the_certificates(tmp_path: Path) -> None:
    """What later versions of Python check by default holds (E42)."""
    init(tmp_path)
    server = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(tmp_path / "ca.pem"))
    server.load_cert_chain(tmp_path / "rest.pem", tmp_path / "rest-key.pem")
    client = ssl.create_default_context(cafile=str(tmp_path / "ca.pem"))
    client.verify_flags |= ssl.VERIFY_X509_STRICT
    to_server, to_client = ssl.MemoryBIO(), ssl.MemoryBIO()
    one = client.wrap_bio(to_client, to_server, server_hostname="localhost")
    other = server.wrap_bio(to_server, to_client, server_side=True)
    waiting = [one, other]
    for _ in range(10):
        for end in tuple(waiting):
            try:
                end.do_handshake()
            except ssl.SSLWantReadError:
                continue
            waiting.remove(end)
    assert waiting == []


def client(directory: Path, *arguments: str) -> str:
    result = CliRunner().invoke(main, ["tls", "client", str(directory), *arguments])
    assert result.exit_code == 0, result.output
    return result.output


def test_a_clients_certificate_comes_from_a_ca_for_clients_alone(tmp_path: Path) -> None:
    """It cannot be used by a server, nor as that of a process of the cluster (E42)."""
    init(tmp_path)
    printed = client(tmp_path, "ci")
    assert mode(tmp_path / "ci-key.pem") == mode(tmp_path / "client-ca-key.pem") == 0o600
    certificate = x509.load_pem_x509_certificate((tmp_path / "ci.pem").read_bytes())
    uses = certificate.extensions.get_extension_for_class(x509.ExtendedKeyUsage).value
    assert list(uses) == [x509.oid.ExtendedKeyUsageOID.CLIENT_AUTH]
    assert certificate.subject.rfc4514_string() == "CN=ci"
    of_clients = x509.load_pem_x509_certificate((tmp_path / "client-ca.pem").read_bytes())
    certificate.verify_directly_issued_by(of_clients)
    assert of_clients.subject != x509.load_pem_x509_certificate((tmp_path / "ca.pem").read_bytes()).subject
    assert "minflinkd token create ci --role ROLE --certificate CN:ci" in printed


def test_what_it_prints_for_the_daemon_is_a_configuration(tmp_path: Path) -> None:
    """Beside what `tls init` prints (E42)."""
    file = tmp_path / "minflinkd.yaml"
    lines = client(tmp_path / "clients", "ci").splitlines()
    of_daemon = [line for line in lines if line.startswith("security.")]
    file.write_text("\n".join([init(tmp_path / "tls").partition("\n")[2], *of_daemon]))
    config = load_config(file, {}, {})
    both = tls_of(config.rest_tls)
    assert both is not None
    both.server(config.rest_tls.clients)


def test_a_second_client_has_the_same_ca_and_its_own_certificate_can_be_renewed(tmp_path: Path) -> None:
    assert json.loads(client(tmp_path, "ci", "--json"))["newCa"] is True
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    assert json.loads(client(tmp_path, "other", "--json"))["newCa"] is False
    client(tmp_path, "ci", "--days", "1")
    changed = {name for name, content in before.items() if (tmp_path / name).read_bytes() != content}
    assert changed == {"ci.pem", "ci-key.pem"}


@pytest.mark.parametrize("name", ["ca", "client-ca", "internal", "rest", "ci-key", "../x", "a b", "", "daemon"])
def test_a_client_whose_files_would_replace_others_is_refused(tmp_path: Path, name: str) -> None:
    """Such as those of the cluster's own processes in the same directory."""
    init(tmp_path)
    before = {file.name: file.read_bytes() for file in tmp_path.iterdir()}
    refused = CliRunner().invoke(main, ["tls", "client", str(tmp_path), name])
    assert refused.exit_code == 2
    assert "not a name that is allowed" in refused.output
    assert {file.name: file.read_bytes() for file in tmp_path.iterdir()} == before
