"""The real code, broken on purpose. The simulation must find each of these; it does not guard what it cannot find."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from minflinkd.rpc.party import CoreSteps
from minflinkd.runtime.errors import MinflinkError
from minflinkd.runtime.machine_driver import CommandQueue
from tests.sim.planting import Planted, patched
from tests.sim.protocol import planted_job_master, planted_resource_manager, planted_task_manager
from tests.sim.protocol.drawing import drawn
from tests.sim.protocol.run import Verdict, attempt, reduced


def _commands_are_lost_after_a_refusal() -> Any:
    def made(step: Any) -> Any:
        def losing(steps: Any, decision: Any, **named: Any) -> Any:
            def decided() -> Any:
                try:
                    return decision()
                except MinflinkError:
                    steps._core.take_commands()
                    raise

            return step(steps, decided, **named)

        return losing

    return patched(CoreSteps, "_step", made)


def _the_last_command_is_carried_out_first() -> Any:
    return patched(CommandQueue, "add", lambda add: lambda queue, commands: add(queue, reversed(tuple(commands))))


FAULTS: Mapping[str, Planted] = {
    **planted_resource_manager.FAULTS,
    **planted_task_manager.FAULTS,
    **planted_job_master.FAULTS,
    "commands are lost after a refusal": _commands_are_lost_after_a_refusal,
    "commands overtake one another": _the_last_command_is_carried_out_first,
}


def find(name: str, within: int) -> Verdict | None:
    """Return the first seed that breaks with this fault, reduced. None if no seed does."""
    fault = FAULTS[name]
    for seed in range(within):
        plan = drawn(seed)
        verdict = attempt(plan, fault)
        if verdict.violation:
            return reduced(plan, verdict, fault)
    return None
