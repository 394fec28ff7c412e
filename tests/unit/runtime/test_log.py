"""Where log lines go."""

import pytest
import structlog

from minflinkd.runtime.log import warnings_only


def test_a_command_s_answer_is_not_mixed_with_what_happens_meanwhile(capsys: pytest.CaptureFixture[str]) -> None:
    log, before = structlog.get_logger(), structlog.get_config()
    with warnings_only():
        log.info("a request is repeated")
        log.warning("the disk is nearly full")
    shown = capsys.readouterr()
    assert shown.out == ""
    assert "nearly full" in shown.err
    assert "repeated" not in shown.err
    assert structlog.get_config() == before
