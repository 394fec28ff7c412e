"""What the plan of a query says about its sources: their names, their lines in the offset log, their logs. Pure.

A source has three kinds of numbers. Example: `FROM x JOIN s JOIN x`, where `x` is an exchange that is read twice, and
`s` is a directory of files:

    number         x is 0, s is 1: each source once, in the order of the plan
    offset lines   x has the lines 0 and 2, s has line 1: one for each place that reads the source
    source log     s has the directory sources/0: exchanges have none, and are not counted
"""

from __future__ import annotations

from minflinkd.rpc.snapshot import PlanNode

EXCHANGE = "minflinkd_exchange"  # the kind of an exchange that a query reads


def source_lines(found: tuple[PlanNode, ...]) -> dict[int, PlanNode]:
    """Return the source of each line of the offset log."""
    return {line: node for node in found if not node.stateful for line in node.offset_lines}


def source_logs(found: tuple[PlanNode, ...]) -> dict[int, int]:
    """Return the directory below `sources` by number of the source. Exchanges have none, and are not counted there.

    Example: for an exchange and then two file sources, `{1: 0, 2: 1}`.
    """
    # Spark counts the directories while it turns relations into sources; an exchange is one from the beginning.
    numbers = sorted(node.number for node in found if not node.stateful and node.kind != EXCHANGE)
    return {number: log for log, number in enumerate(numbers)}


def lines_with_logs(found: tuple[PlanNode, ...]) -> dict[int, int]:
    """Return the directory below `sources` by line of the offset log. Exchanges have none: their lines are left out."""
    logs = source_logs(found)
    return {line: logs[node.number] for line, node in source_lines(found).items() if node.number in logs}


def source_names(found: tuple[PlanNode, ...]) -> dict[int, str]:
    """Return a name for each source by its number: its vertex, and `<vertex>#2` for a second one in it."""
    names: dict[int, str] = {}
    for node in found:
        if not node.stateful:
            vertex = node.vertex or "source"
            taken = sum(name.partition("#")[0] == vertex for name in names.values())
            names[node.number] = f"{vertex}#{taken + 1}" if taken else vertex
    return names
