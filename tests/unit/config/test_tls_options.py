"""Options of TLS: what must be set together, and which addresses they allow."""

from __future__ import annotations

import pytest

from minflinkd.config import ConfigError, load_config
from minflinkd.config.tls_options import tls_of
from minflinkd.runtime.tls import Clients

INTERNAL = {f"security.ssl.internal.{name}": f"/tls/{name}.pem" for name in ("certificate", "key", "ca")} | {
    "security.ssl.internal.enabled": "true"
}
REST = {f"security.ssl.rest.{name}": f"/tls/{name}.pem" for name in ("certificate", "key")} | {
    "security.ssl.rest.enabled": "true"
}
ON_A_NETWORK = {
    "jobmanager.bind-host": "0.0.0.0",
    "jobmanager.rpc.address": "a.example",
    "taskmanager.bind-host": "0.0.0.0",
    "taskmanager.host": "a.example",
}


def faults(options: dict[str, str]) -> list[str]:
    with pytest.raises(ConfigError) as refused:
        load_config(None, {}, options)
    return [fault.problem for fault in refused.value.faults]


def test_without_the_options_there_is_no_tls() -> None:
    config = load_config(None, {}, {})
    assert tls_of(config.internal_tls) is None
    assert tls_of(config.rest_tls) is None


@pytest.mark.parametrize("missing", ["certificate", "key", "ca"])
def test_tls_needs_all_of_its_files(missing: str) -> None:
    """The fault names the option that is missing (E42)."""
    (problem,) = faults({key: value for key, value in INTERNAL.items() if not key.endswith(missing)})
    assert problem.startswith(f"security.ssl.internal.enabled needs security.ssl.internal.{missing};")


def test_with_certificates_on_both_sides_the_inner_addresses_may_be_on_a_network() -> None:
    """Without them, and without the option that says so, the start is refused (E40)."""
    assert load_config(None, {}, ON_A_NETWORK | INTERNAL).internal_tls.enabled
    assert len([each for each in faults(ON_A_NETWORK) if "set security.ssl.internal.enabled: true" in each]) == 2
    assert faults({**ON_A_NETWORK, **INTERNAL, "jobmanager.rpc.address": ""})
    assert faults({**ON_A_NETWORK, **INTERNAL, "taskmanager.host": ""})


def test_the_endpoint_may_be_on_a_network_with_tls_of_its_own() -> None:
    """Its clients show a token, which nobody on the way may read (E40)."""
    for others in ({}, INTERNAL):
        (problem,) = faults({"rest.bind-address": "0.0.0.0", **others})
        assert "whoever reaches it can run code" in problem
        assert "set security.ssl.rest.enabled: true" in problem
    load_config(None, {}, {"rest.bind-address": "0.0.0.0", **REST})
    load_config(None, {}, {"rest.bind-address": "0.0.0.0", "security.allow-unauthenticated": "true"})


CLIENTS = {"security.ssl.rest.client-certificates": "optional", "security.ssl.rest.client-ca": "/tls/client-ca.pem"}


def test_certificates_of_clients_need_tls_and_a_ca_and_a_ca_needs_them() -> None:
    """A CA that is never asked for would let somebody believe that it protects something (E42)."""
    assert load_config(None, {}, REST | CLIENTS).rest_tls.clients is Clients.MAY_HAVE_ONE
    required = REST | CLIENTS | {"security.ssl.rest.client-certificates": "required"}
    assert load_config(None, {}, required).rest_tls.clients is Clients.NEED_A_CERTIFICATE
    assert load_config(None, {}, REST).rest_tls.clients is Clients.NEED_NONE
    for missing in ("security.ssl.rest.client-ca", "security.ssl.rest.enabled"):
        (problem,) = faults({key: value for key, value in (REST | CLIENTS).items() if key != missing})
        assert "optional needs security.ssl.rest.enabled and security.ssl.rest.client-ca" in problem
    (problem,) = faults({**REST, "security.ssl.rest.client-ca": "/tls/client-ca.pem"})
    assert "has no effect without security.ssl.rest.client-certificates" in problem
