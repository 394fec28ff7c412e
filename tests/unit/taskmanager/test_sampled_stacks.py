"""What py-spy and the JVM tell of stacks is read into one form."""

from __future__ import annotations

from minflinkd.rpc.messages import SampledStack
from minflinkd.taskmanager.child import py_spy
from minflinkd.taskmanager.session.spark.jvm_view import stack_of

DRIVER = 17
DRIVES = 'process 17:"python -m minflinkd.taskmanager.session";thread (17): MainThread;<module> (a.py:1);wait (a.py:2)'
WORKS = (
    'process 17:"python -m x";process 18:"java -cp a;b";process 19:"python worker.py";'
    "thread (19): MainThread;main (w.py:1);squared (f.py:7)"
)
DUMP = """Process 4110: python3 spin.py
Python v3.11.7 (/usr/bin/python3.11)

Thread 4110 (idle): "MainThread"
    idle (spin.py:5)
    <module> (spin.py:10)

Thread 4159 (active+gil): "burner"
    burn (spin.py:4)
"""


def test_idle_threads_are_those_that_are_not_active() -> None:
    """Two recordings of the same seconds: of all threads, and of those that compute something."""
    everything, active = f"{DRIVES} 40\n{WORKS} 40\n", f"{WORKS} 30\n"
    assert py_spy.stacks_of(everything, active, DRIVER) == [
        SampledStack(
            frames=("Python: workers, of all tasks", "MainThread", "main (w.py:1)", "squared (f.py:7)"),
            count=30,
            running=True,
        ),
        SampledStack(
            frames=("Python: driver, of all tasks", "MainThread", "<module> (a.py:1)", "wait (a.py:2)"),
            count=40,
            running=False,
        ),
        SampledStack(
            frames=("Python: workers, of all tasks", "MainThread", "main (w.py:1)", "squared (f.py:7)"),
            count=10,
            running=False,
        ),
    ]


def test_a_dump_is_shown_as_one_of_java() -> None:
    first, second = py_spy.threads_of(DUMP, "Python worker 4110")
    assert (first.name, second.name) == ("MainThread", "burner")
    assert first.text == '"MainThread" Python worker 4110, idle\n\tat idle (spin.py:5)\n\tat <module> (spin.py:10)\n\n'


def test_a_stack_of_the_jvm_says_its_partition() -> None:
    """Threads without a partition are those that drive the micro-batches."""
    assert stack_of("3\t1\t7\tjava.lang.Thread.run:1\torg.X.f:2") == SampledStack(
        frames=("JVM: partitions", "java.lang.Thread.run:1", "org.X.f:2"), count=3, running=True, partition=7
    )
    assert stack_of("1\t0\t-1\ta.b:1").frames[0] == "JVM: micro-batches"
