"""Whether state that a new version takes over still means the same."""

from __future__ import annotations

import pytest
from msgspec.structs import replace

from minflinkd.checkpoint.state_matching import StateMeaningChanged, StateNotMatched, match_nodes
from minflinkd.checkpoint.state_meaning import change
from minflinkd.rpc.snapshot import Meant, PlanNode, Role


def meant(*parts: str) -> tuple[Meant, ...]:
    """Parse `text[|exact[|form]]`. An aggregate has a parenthesis in its form; a key that has one begins with `by `."""
    found = []
    for part in parts:
        text, *more = part.removeprefix("by ").split("|")
        exact = more[0] if more else text
        form = more[1] if len(more) > 1 else exact
        role = Role.KEY if part.startswith("by ") or "(" not in form else Role.AGGREGATE
        found.append(Meant(role=role, text=text, exact=exact, form=form))
    return tuple(found)


KEPT = {
    "nothing changes": (("k", "sum(v)"), ("k", "sum(v)")),
    "another name of a column": (("k|k", "sum(v)|sum(v)"), ("name|k", "sum(total)|sum(v)")),
    "an expression that moves into a projection": (("by upper(k)",), ("by u|upper(k)",)),
    "another literal in a projection": (
        ("by p|substr(k, 1, 3)|substr(k, ?, ?)",),
        ("by p|substr(k, 1, 4)|substr(k, ?, ?)",),
    ),
    "another addend": (("sum(v)|sum(v)|sum(v)",), ("sum((v * 2))|sum((v * 2))|sum(v)",)),
    "another length of a window": (("by window|struct(60)|window(t)",), ("by window|struct(120)|window(t)",)),
    "a number of aggregates that Spark judges": (("k", "sum(v)"), ("k", "sum(v)", "min(v)")),
    "an old savepoint, which says nothing": ((), ("k", "max(v)")),
}
ORDER = "; Spark knows them by their order alone"
CHANGED = {
    "another function": (("k", "sum(v)"), ("k", "max(v)"), "holds sum(v), and would be read as max(v)"),
    "another column": (("sum(v)",), ("sum(w)",), "holds sum(v), and would be read as sum(w)"),
    "another column of the same name": (
        ("sum(v)|sum(a)",),
        ("sum(v)|sum(b)",),
        "holds sum(a), and would be read as sum(b)",
    ),
    "another grouping": (("k",), ("by upper(k)",), "was kept by k, and is now kept by upper(k)"),
    "another literal in the grouping itself": (
        ("by (v % 10)",),
        ("by (v % 20)",),
        "was kept by (v % 10), and is now kept by (v % 20)",
    ),
    "two aggregates that exchange their places": (
        ("sum(a)", "sum(b)"),
        ("sum(b)", "sum(a)"),
        f"holds sum(a), and would be read as sum(b){ORDER}",
    ),
    "two of one form that exchange their places": (
        ("sum(v) a|sum(v) a|sum(v)", "sum(v) b|sum(v) b|sum(v)"),
        ("sum(v) b|sum(v) b|sum(v)", "sum(v) a|sum(v) a|sum(v)"),
        f"holds sum(v) a, and would be read as sum(v) b{ORDER}",
    ),
    "two keys that exchange their places": (("a", "b"), ("b", "a"), f"was kept by a, and is now kept by b{ORDER}"),
    "two of one name and one form that exchange their places": (
        ("by p|substr(a, 1)|substr(?)", "by p|substr(b, 1)|substr(?)"),
        ("by p|substr(b, 1)|substr(?)", "by p|substr(a, 1)|substr(?)"),
        f"was kept by substr(a, 1), and is now kept by substr(b, 1){ORDER}",
    ),
    "another function of the same name, in a projection": (
        ("by p|substr(k, 1, 3)|substr(k, ?, ?)",),
        ("by p|left(k, 3)|left(k, ?)",),
        "was kept by substr(k, ?, ?), and is now kept by left(k, ?)",
    ),
    "the second of two": (("sum(a)", "sum(b)"), ("sum(a)", "sum(c)"), "holds sum(b), and would be read as sum(c)"),
    "an aggregate beside a number of keys that Spark judges": (
        ("k", "sum(v)"),
        ("j", "l", "max(v)"),
        "holds sum(v), and would be read as max(v)",
    ),
    "what one of them was, in another place": (
        ("by a|x|f", "by b|y|f", "by c|z|f"),
        ("by a|x|f", "by c|z|f", "by d|w|f"),
        "was kept by b, and is now kept by c",
    ),
}


@pytest.mark.parametrize("what", KEPT)
def test_what_a_new_version_may_change_is_no_change_of_meaning(what: str) -> None:
    """C25, H2."""
    old, new = KEPT[what]
    assert change("Aggregate", meant(*old), meant(*new)) == ""
    assert change("Aggregate", meant(*new), meant(*old)) == ""


@pytest.mark.parametrize("what", CHANGED)
def test_state_that_would_go_on_as_something_else_is_told_with_both(what: str) -> None:
    """C25, H2."""
    old, new, told = CHANGED[what]
    assert change("Aggregate", meant(*old), meant(*new)) == told


def test_rows_that_a_join_or_a_deduplication_finds_by_other_columns_are_told_so() -> None:
    """C25."""
    assert change("Deduplicate", meant("a"), meant("b")) == "knew rows by a, and now knows rows by b"
    told = change("Join", meant("by a.x = b.x"), meant("by a.y = b.y"))
    assert told == "found rows by a.x = b.x, and now finds rows by a.y = b.y"  # fmt: skip


def test_another_meaning_is_refused_with_a_code_of_its_own_unless_it_is_allowed() -> None:
    """C25."""
    old = PlanNode(number=0, stateful=True, vertex="w", kind="Aggregate", fingerprint="1", meaning=meant("sum(v)"))
    new = replace(old, meaning=meant("max(v)"))
    with pytest.raises(StateMeaningChanged, match=r"the state of vertex w .* holds sum") as caught:
        match_nodes([old], [new], allow_non_restored=True)
    (reason,) = caught.value.reasons
    assert (caught.value.code, reason.code, reason.vertex) == ("state-meaning-changed", "state-meaning-changed", "w")
    assert "allow-changed-state" in reason.hint
    assert match_nodes([old], [new], allow_changed=True).operators == {0: 0}


def test_types_that_do_not_fit_are_told_before_what_they_mean() -> None:
    """Types that do not fit cannot be allowed (C25)."""
    old = PlanNode(number=0, stateful=True, vertex="w", kind="Aggregate", fingerprint="1", meaning=meant("sum(v)"))
    new = replace(old, meaning=meant("avg(v)"), fingerprint="2")
    with pytest.raises(StateNotMatched, match="other types") as caught:
        match_nodes([old], [new], allow_changed=True)
    assert caught.value.code == "state-not-matched"
