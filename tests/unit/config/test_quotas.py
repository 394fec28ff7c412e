"""Limits of users: `security.quotas.<user>.<limit>`."""

from __future__ import annotations

import pytest

from minflinkd.config import ConfigError, load_config
from minflinkd.config.load import parse_config
from minflinkd.config.quotas import Limit, Quotas

FILE = """\
security.quotas:
  "*": {jobs: 10, slots: 40, artifacts: 2 GiB}
  alice@b.example: {slots: 100}
  uid 0:
    jobs: none
security.quotas.ci.artifacts: 0
"""


def test_a_user_has_their_own_limits_and_otherwise_everybodys() -> None:
    """Each kind by itself; `none` lifts a limit. Names of users may have dots and blanks."""
    quotas = Quotas.parse(parse_config(FILE, {}, {}).security.quotas)
    assert quotas.of("alice@b.example", "slots") == Limit(100, "security.quotas.alice@b.example.slots")
    assert quotas.of("alice@b.example", "jobs") == Limit(10, "security.quotas.*.jobs")
    assert quotas.of("bob", "artifacts") == Limit(2 << 30, "security.quotas.*.artifacts")
    assert quotas.of("uid 0", "jobs") == Limit(None, "security.quotas.uid 0.jobs")
    assert quotas.of("ci", "artifacts").most == 0
    assert quotas.users == {"alice@b.example", "uid 0", "ci"}


def test_without_the_option_there_is_no_limit() -> None:
    quotas = Quotas.parse(load_config(None, {}, {}).security.quotas)
    assert quotas.of("alice", "jobs") == Limit()
    assert quotas.users == frozenset()


def test_the_environment_and_the_command_line_may_set_them_too() -> None:
    environ = {"MINFLINKD_SECURITY_QUOTAS": '{"*": {jobs: 3}}'}
    config = load_config(None, environ, {"security.quotas.ci.jobs": "7"})
    assert config.security.quotas == {"*.jobs": "3", "ci.jobs": "7"}


@pytest.mark.parametrize(
    ("entry", "value", "problem"),
    [
        ("alice.jobs", "many", "'many' is not a whole number, or none"),
        ("alice.jobs", "-1", "'-1' is not a whole number, or none"),
        ("alice.slots", "1.5", "'1.5' is not a whole number, or none"),
        ("alice.slots", "9999999999", "is not a whole number"),
        ("alice.artifacts", "big", "'big' is not a size such as 512 MiB or 2 GiB, or none"),
        ("alice.cores", "1", "'alice.cores' is not <user>.<limit>, where the limit is one of jobs, slots, artifacts"),
        ("alice", "1", "'alice' is not <user>.<limit>"),
        (".jobs", "1", "'.jobs' is not <user>.<limit>"),
    ],
)
def test_a_limit_that_is_none_is_a_fault_at_its_line(entry: str, value: str, problem: str) -> None:
    """The message names the line of the entry, not that of another one."""
    text = f'security.quotas:\n  bob.jobs: 1\n  {entry}: "{value}"\n  carol.jobs: 1\n'
    with pytest.raises(ConfigError) as refused:
        parse_config(text, {}, {})
    (fault,) = refused.value.faults
    assert (fault.origin, fault.key) == ("minflinkd.yaml:3", f"security.quotas.{entry}")
    assert problem in fault.problem
