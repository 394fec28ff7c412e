"""Which segments are live, and when a physical file may be deleted (F4 - F6)."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st
from msgspec.structs import replace as copy

from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine.registry import LiveSegments, Registry
from minflinkd.checkpoint.machine.state import file_figures
from minflinkd.checkpoint.metadata import CompletedCheckpoint
from minflinkd.filemerging.segments import checksum
from minflinkd.rpc.snapshot import StateFile, StateHandle, TaskSnapshot
from minflinkd.runtime.ids import AttemptId, TaskId
from tests.unit.checkpoint.builders import A1, B1, ERROR, TASKS, TM, A, B, Story, completed, name, snapshot


def segment(file: str, content: str, offset: int = 8) -> StateHandle:
    return StateHandle(file, offset, len(content), checksum(content.encode()))


def taken(
    checkpoint_id: int,
    *handles: StateHandle,
    task: TaskId = A,
    attempt: AttemptId = A1,
    rewritten: tuple[str, ...] = (),
) -> TaskSnapshot:
    """Return a snapshot with state files `0`, `1`, ... at these handles.

    Segments in this checkpoint's own file count as written for it.
    """
    own = name(checkpoint_id, attempt)
    files = tuple(StateFile(f"state/{number}", handle) for number, handle in enumerate(handles))
    written = (own,) if any(handle.file == own for handle in handles) else ()
    return TaskSnapshot(
        task_id=task,
        attempt_id=attempt,
        resource_id=TM,
        checkpoint_id=checkpoint_id,
        batch_id=checkpoint_id,
        files=files,
        physical_files=written,
        rewritten=rewritten,
    )


F1, F2, F3 = name(1, A1), name(2, A1), name(3, A1)


def pending_with(story: Story, *snapshots: TaskSnapshot) -> list[e.Command]:
    """Acknowledge these snapshots, and let the other task acknowledge as well."""
    wanted: list[e.Command] = []
    for one in snapshots:
        wanted += story.tell(e.Acknowledged(one), e.Acknowledged(snapshot(one.checkpoint_id, B, B1)))
    return wanted


def handles_of(checkpoint: CompletedCheckpoint, task: TaskId = A) -> list[StateHandle]:
    return [file.handle for one in checkpoint.tasks if one.task_id == task for file in one.files]


def deleted(commands: list[e.Command]) -> frozenset[str]:
    return frozenset().union(*(command.files for command in commands if isinstance(command, e.DeleteFiles)))


def written(commands: list[e.Command]) -> CompletedCheckpoint:
    [command] = [command for command in commands if isinstance(command, e.WriteMetadata)]
    return command.checkpoint


def confirmed(story: Story, checkpoint_id: int) -> list[e.Command]:
    return story.tell(*(e.TaskNotified(checkpoint_id, attempt) for attempt in TASKS.values()))


# --- a segment that is known already (F4) ------------------------------------------------------------------------


def two_with_a_common_segment() -> tuple[Story, CompletedCheckpoint, list[e.Command]]:
    """Take checkpoints 2 and 3 at once. Both wrote "x", and 3 then wrote "y" to its file. 2 completes first."""
    story = Story(max_concurrent=2, num_retained=1).running().pending(2).pending(3)
    pending_with(story, taken(2, segment(F2, "x")))
    story.tell(e.MetadataWritten(2))
    confirmed(story, 2)
    commands = pending_with(story, taken(3, segment(F3, "x"), segment(F3, "y", 9)))
    third = written(commands)
    commands += story.tell(e.MetadataWritten(3))
    return story, third, commands


def test_a_file_whose_first_segment_was_dropped_stays_for_the_next_one() -> None:
    """Between two segments nothing refers to the file, and it must still stay (F5).

    Checkpoint 3 drops its copy of a segment that checkpoint 2 registered. Then it registers another segment of the same
    physical file.
    """
    story, third, commands = two_with_a_common_segment()
    assert handles_of(third) == [segment(F2, "x"), segment(F3, "y", 9)]
    commands += confirmed(story, 3)
    commands += story.tell(e.MetadataDiscarded(2))
    assert deleted(commands).isdisjoint({F2, F3})
    assert third.physical_files() <= story.state.registry.files.keys()


def test_a_registered_segment_takes_the_place_of_the_newcomers_copy() -> None:
    """The new checkpoint's metadata names it. A file with only such copies is deleted once that is complete (F4)."""
    story = Story(max_concurrent=2, num_retained=1).running().pending(2).pending(3)
    pending_with(story, taken(2, segment(F2, "x"), segment(F2, "y", 9)))
    story.tell(e.MetadataWritten(2))
    commands = pending_with(story, taken(3, segment(F3, "y"), segment(F3, "x", 9)))
    third = written(commands)
    assert handles_of(third) == [segment(F2, "y", 9), segment(F2, "x")]
    assert [file.path for file in third.tasks[0].files] == ["state/0", "state/1"]
    assert third.tasks[0].physical_files == ()
    assert deleted(commands) == frozenset()
    assert deleted(story.tell(e.MetadataWritten(3))) == {F3}


def test_a_task_may_go_on_naming_its_own_copy_of_a_segment() -> None:
    """Nobody tells the task that its copy was dropped. The name stands for the registered segment (F4)."""
    story = Story(max_concurrent=2, num_retained=1).running().pending(2).pending(3)
    pending_with(story, taken(2, segment(F2, "x")))
    story.tell(e.MetadataWritten(2))
    pending_with(story, taken(3, segment(F3, "x")))
    story.tell(e.MetadataWritten(3), e.FilesDeleted(frozenset({F3})))
    confirmed(story, 3)
    story.pending(4)
    commands = pending_with(story, taken(4, segment(F3, "x"), segment(name(4, A1), "z")))
    assert handles_of(written(commands)) == [segment(F2, "x"), segment(name(4, A1), "z")]
    assert [file.path for file in written(commands).tasks[0].files] == ["state/0", "state/1"]


def test_a_copy_that_a_checkpoint_in_flight_takes_for_granted_is_still_found_behind_its_end() -> None:
    """3 dropped its copy and was subsumed by 4. When 5 began, 3 was the latest (F5)."""
    story = Story(max_concurrent=3, num_retained=1).running().pending(2).pending(3)
    pending_with(story, taken(2, segment(F2, "x")))
    story.tell(e.MetadataWritten(2))
    pending_with(story, taken(3, segment(F3, "x")))
    story.tell(e.MetadataWritten(3), e.FilesDeleted(frozenset({F3})))
    confirmed(story, 3)
    story.pending(4).pending(5)
    pending_with(story, taken(4, segment(name(4, A1), "z")))
    story.tell(e.MetadataWritten(4))
    commands = confirmed(story, 4)
    assert e.DiscardMetadata(3) in commands
    assert F2 not in deleted(story.tell(e.MetadataDiscarded(2), e.MetadataDiscarded(3)))
    assert handles_of(written(pending_with(story, taken(5, segment(F3, "x"))))) == [segment(F2, "x")]
    story.tell(e.MetadataWritten(5))
    assert F2 in story.state.registry.files


def test_a_segment_of_another_task_is_not_the_same() -> None:
    """Files of different TaskManagers do not keep each other alive (F4)."""
    registry = Registry.of([completed(1, taken(1, segment(F1, "x")))])
    mine, other = segment(F2, "x"), segment(name(2, B1), "x")
    assert handles_of(completed(2, registry.registered(taken(2, mine)))) == [segment(F1, "x")]
    assert handles_of(completed(2, registry.registered(taken(2, other, task=B, attempt=B1))), B) == [other]


def test_a_file_that_tasks_share_stays_for_the_one_that_needs_it() -> None:
    """What one of them wrote into it was known already. It is one file in the statistics too (F1, F5)."""
    story = Story(max_concurrent=2, num_retained=1).running().pending(2).pending(3)
    pending_with(story, taken(2, segment(F2, "x")))
    story.tell(e.MetadataWritten(2))
    of_a = copy(taken(3, segment(F3, "x")), file_sizes={F3: 500})
    of_b = copy(taken(3, segment(F3, "y", 9), task=B, attempt=B1), physical_files=(F3,), file_sizes={F3: 500})
    commands = story.tell(e.Acknowledged(of_a), e.Acknowledged(of_b))
    third = written(commands)
    assert (handles_of(third), handles_of(third, B)) == ([segment(F2, "x")], [segment(F3, "y", 9)])
    assert [one.file_sizes for one in third.tasks] == [{F2: 9}, {F3: 500}]
    assert F3 not in deleted(story.tell(e.MetadataWritten(3)))
    assert story.state.pending == {}
    assert file_figures(story.state).bytes_stored == 9 + 500 + story.state.sizes[name(2, B1)]


# --- compaction (F6) ---------------------------------------------------------------------------------------------


def test_what_a_task_has_rewritten_takes_the_place_of_what_is_registered() -> None:
    """A rewritten segment counts from its checkpoint on.

    The old file goes with the last one that refers to it (F6).
    """
    story = Story(num_retained=1).running().pending(1)
    pending_with(story, taken(1, segment(F1, "x")))
    story.tell(e.MetadataWritten(1))
    confirmed(story, 1)
    story.pending(2)
    commands = pending_with(story, taken(2, segment(F2, "x"), rewritten=(F2,)))
    assert handles_of(written(commands)) == [segment(F2, "x")]
    story.tell(e.MetadataWritten(2))
    assert e.DiscardMetadata(1) in confirmed(story, 2)
    assert F1 in deleted(story.tell(e.MetadataDiscarded(1)))
    story.pending(3)
    assert handles_of(written(pending_with(story, taken(3, segment(F3, "x"))))) == [segment(F2, "x")]


def test_rewritten_segments_of_a_failed_checkpoint_leave_the_old_ones_registered() -> None:
    """Nothing refers to the new file, so it is deleted. The old one stays (F6)."""
    story = Story(num_retained=1, tolerable_failed=5).running().pending(1)
    pending_with(story, taken(1, segment(F1, "x")))
    story.tell(e.MetadataWritten(1))
    confirmed(story, 1)
    story.pending(2)
    story.tell(e.Acknowledged(taken(2, segment(F2, "x"), rewritten=(F2,))))
    commands = story.tell(e.Declined(2, B1, ERROR))
    assert deleted(commands) == {F2}
    assert story.state.registry.known(A, segment(F3, "x")) == segment(F1, "x")


def test_a_segment_that_was_rewritten_is_known_by_its_earlier_copy_when_the_later_one_is_gone() -> None:
    """As long as a checkpoint refers to that (F4, F6)."""
    first, second = completed(1, taken(1, segment(F1, "x"))), completed(2, taken(2, segment(F2, "x")))
    registry = Registry.of([first, second])
    assert registry.known(A, segment(F3, "x")) == segment(F2, "x")
    assert registry.without(second).known(A, segment(F3, "x")) == segment(F1, "x")
    assert registry.without(first).known(A, segment(F3, "x")) == segment(F2, "x")


# --- counts ------------------------------------------------------------------------------------------------------


def test_files_are_counted_by_their_live_segments() -> None:
    """A segment of several state files or checkpoints counts once (F4, F10)."""
    first = completed(1, taken(1, segment(F1, "x"), segment(F1, "x"), segment(F1, "yy", 9)))
    second = completed(2, taken(2, segment(F1, "yy", 9), segment(F2, "zzz")))
    registry = Registry.of([first, second])
    assert registry.files == {F1: LiveSegments(2, 3), F2: LiveSegments(1, 3)}
    assert (registry.segments, registry.bytes) == (3, 6)
    assert registry.without(first).files == {F1: LiveSegments(1, 2), F2: LiveSegments(1, 3)}
    assert registry.without(first).without(second) == Registry()


HANDLES = st.builds(segment, st.sampled_from([F1, F2, F3]), st.sampled_from("xyz"), st.sampled_from([8, 9]))
CHECKPOINTS = st.lists(st.lists(HANDLES, max_size=4), max_size=6).map(
    lambda found: [completed(number, taken(number, *handles)) for number, handles in enumerate(found, 1)]
)


@given(CHECKPOINTS, st.data())
def test_the_registry_is_what_the_checkpoints_make_it(
    checkpoints: list[CompletedCheckpoint], data: st.DataObject
) -> None:
    """The order of checkpoints that came and went does not matter, so the registry need not be stored (F4)."""
    gone = data.draw(st.lists(st.sampled_from(checkpoints), unique_by=id)) if checkpoints else []
    registry = Registry.of(checkpoints)
    for checkpoint in gone:
        registry = registry.without(checkpoint)
    anew = Registry.of(checkpoint for checkpoint in checkpoints if checkpoint not in gone)
    assert registry.live == anew.live
    assert registry.files == anew.files
    assert {content: set(found) for content, found in registry.by_content.items()} == {
        content: set(found) for content, found in anew.by_content.items()
    }
    assert registry.files.keys() == {f for c in checkpoints if c not in gone for f in c.physical_files()}
