"""Which units of a session an artifact claims (B31)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from minflinkd.jobgraph.libraries import JAVA_DEPTH, claims, units

NATIVE = "acme_fast.cpython-311-x86_64-linux-gnu.so"


def test_python_code_claims_nothing() -> None:
    """Python code is isolated (B30)."""
    assert units("flights.py", ()) == ()
    assert units("tools.zip", ("tools/__init__.py", "tools/data.csv")) == ()
    assert units("tools-1.0-py3-none-any.whl", ("tools/__init__.py", "tools-1.0.dist-info/RECORD")) == ()


def test_a_wheel_with_native_code_claims_each_of_its_top_level_packages() -> None:
    """Pure Python packages of the wheel count too, because the whole wheel is loaded under its own names (B31)."""
    members = (
        NATIVE,
        "acme/__init__.py",
        "acme/fast.pyd",
        "helper.py",
        "acme-1.0.dist-info/RECORD",
        "acme.libs/z.so.1",
    )
    assert units("acme-1.0-cp311-cp311-linux_x86_64.whl", members) == (
        "native:acme",
        "native:acme_fast",
        "native:helper",
    )


def test_a_wheels_data_directory_is_looked_through() -> None:
    """platlib goes where packages go; scripts and headers do not (B31)."""
    members = ("acme-1.0.data/platlib/acme/fast.so", "acme-1.0.data/scripts/acme", "acme-1.0.dist-info/METADATA")
    assert units("acme.whl", members) == ("native:acme",)


def test_a_jar_claims_each_directory_of_classes() -> None:
    """Resources and the manifest claim nothing. Classes for another Java release belong to the package (B31)."""
    members = (
        "META-INF/MANIFEST.MF",
        "META-INF/versions/17/com/acme/text/Late.class",
        "META-INF/versions/9/module-info.class",
        "com/acme/",
        "com/acme/rules/Rule.class",
        "com/acme/rules/Rule$Inner.class",
        "com/acme/rules/table.csv",
        "Main.class",
    )
    assert units("rules.jar", members) == ("java:", "java:com/acme/rules", "java:com/acme/text")


def test_a_unit_of_two_artifacts_is_defined_by_both() -> None:
    """A job never conflicts with itself, whatever the order of its artifacts (B31)."""
    one, other = (("java:com/acme", "java:org/x"), "aa"), (("java:com/acme",), "bb")
    both = claims([one, other])
    assert both == claims([other, one])
    assert (both["java:org/x"], claims([one])["java:com/acme"]) == ("aa", "aa")
    assert both["java:com/acme"] not in ("aa", "bb")
    assert claims([((), "cc")]) == {}


def test_a_fat_jar_and_a_small_one_with_the_same_class_share_a_unit() -> None:
    """Two jars share a unit however many directories the fat one has (B31)."""
    fat = units("fat.jar", [f"com/acme/rules/a{i}/X.class" for i in range(1000)])
    assert fat == units("small.jar", ["com/acme/rules/a7/X.class"]) == ("java:com/acme/rules",)


@given(st.lists(st.lists(st.sampled_from("abcdefghijklmnop"), max_size=5).map(lambda p: "/".join([*p, "X.class"]))))
def test_units_are_short_sorted_and_without_repetition(members: list[str]) -> None:
    """The order of the members does not matter (B31)."""
    found = units("any.jar", members)
    assert list(found) == sorted(set(found))
    assert all(unit.count("/") < JAVA_DEPTH for unit in found)
    assert found == units("any.jar", reversed(members))
    assert bool(found) == bool(members)
