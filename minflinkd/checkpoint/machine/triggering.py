"""How a checkpoint begins (C20): the request waits its turn, an id is set up, hooks answer, tasks are triggered."""

from __future__ import annotations

from dataclasses import replace

from minflinkd.checkpoint.causes import TRIGGER, CheckpointKind, FailureCause, Refusal
from minflinkd.checkpoint.machine import events as e
from minflinkd.checkpoint.machine.pending import PendingCheckpoint
from minflinkd.checkpoint.machine.state import Request, SettingUp, obstacle, refusal
from minflinkd.checkpoint.machine.step import Step
from minflinkd.runtime.errors import ErrorInfo
from minflinkd.runtime.ids import AttemptId


def submit(step: Step, request: Request) -> None:
    state = step.state
    if reason := refusal(state, request):
        step.refuse(request, reason)
    elif state.setting_up is None and not state.queued and obstacle(state, request, step.now) is None:
        _begin(step, request)
    elif request.forced:
        step.set(queued=(request, *state.queued))
    else:
        _enqueue(step, request)


def _enqueue(step: Step, request: Request) -> None:
    """There is one place in the queue. A user's request replaces a periodic one, and serves it too."""
    waiting = next((queued for queued in step.state.queued if not queued.forced), None)
    if waiting is not None and (waiting.kind is not CheckpointKind.PERIODIC or request.kind is CheckpointKind.PERIODIC):
        step.refuse(request, Refusal.ALREADY_QUEUED)
        return
    if waiting is not None:
        step.refuse(waiting, Refusal.ALREADY_QUEUED)
    step.set(queued=(*(queued for queued in step.state.queued if queued is not waiting), request))


def begin_queued(step: Step) -> None:
    for request in step.state.queued:
        if reason := refusal(step.state, request):
            step.set(queued=tuple(queued for queued in step.state.queued if queued is not request))
            step.refuse(request, reason)
        elif step.state.setting_up is None and obstacle(step.state, request, step.now) is None:
            step.set(queued=tuple(queued for queued in step.state.queued if queued is not request))
            _begin(step, request)


def periodic(step: Step) -> None:
    state = step.state
    if state.next_trigger is not None and step.now >= state.next_trigger and state.final is None:
        step.set(next_trigger=step.now + state.options.interval)
        submit(step, step.own_request(CheckpointKind.PERIODIC))


def begin_final(step: Step) -> None:
    """Begin the final checkpoint after everything else in flight, because its tasks have no more output to come."""
    state, final = step.state, step.state.final
    if final is None or final.request is not None:
        return
    if step.now < final.retry_at or state.setting_up is not None or state.pending or state.queued:
        return
    request = step.own_request(CheckpointKind.FINAL)
    if refusal(state, request) is None:
        step.set(final=replace(final, request=request.number))
        _begin(step, request)


def _begin(step: Step, request: Request) -> None:
    step.set(setting_up=SettingUp(request, step.now + step.state.options.timeout))
    if request.stop:
        step.set(stopping=request.number)
    step.commands.append(e.SetUp(request.number))


def set_up_done(step: Step, number: int, checkpoint_id: int, at_ms: int) -> None:
    step.set(last_id=max(step.state.last_id, checkpoint_id))  # also for a set-up that came too late
    setting_up = step.state.setting_up
    if setting_up is None or setting_up.request.number != number:
        return
    request = setting_up.request
    step.set(setting_up=None)
    # The state may have changed during the set-up, so check again.
    if reason := refusal(step.state, request) or obstacle(step.state, request, step.now):
        step.refuse(request, reason)
        return
    checkpoint = PendingCheckpoint(
        checkpoint_id=checkpoint_id,
        request=number,
        kind=request.kind,
        tasks=dict(step.state.attempts),
        triggered_ms=at_ms,
        triggered_at=step.now,
        deadline=step.now + step.state.options.timeout,
        stop=request.stop,
        full=request.full,
        hooks=dict.fromkeys(step.state.options.hooks),
    )
    step.put(checkpoint)
    step.commands.append(e.Report(checkpoint.record()))
    step.commands += [e.CallHook(hook, checkpoint_id) for hook in checkpoint.hooks]
    _trigger_tasks(step, checkpoint)


def hook_answered(step: Step, checkpoint_id: int, hook: str, state: bytes) -> None:
    checkpoint = step.state.pending.get(checkpoint_id)
    if checkpoint is None or hook not in checkpoint.silent_hooks:
        return  # the checkpoint has ended in the meantime
    checkpoint = replace(checkpoint, hooks={**checkpoint.hooks, hook: state})
    step.put(checkpoint)
    _trigger_tasks(step, checkpoint)


def _trigger_tasks(step: Step, checkpoint: PendingCheckpoint) -> None:
    """Trigger the tasks once all hooks have answered (C27)."""
    if not checkpoint.silent_hooks:
        number, stop, full = checkpoint.checkpoint_id, checkpoint.stop, checkpoint.full
        step.commands += [e.SendTrigger(attempt, number, stop, full) for attempt in checkpoint.tasks.values()]


def set_up_failed(step: Step, error: ErrorInfo | None, cause: FailureCause = FailureCause.TRIGGER_FAILURE) -> None:
    setting_up = step.state.setting_up
    if setting_up is None:
        return
    step.set(setting_up=None)
    if cause in TRIGGER:
        step.set(trigger_failures=step.state.trigger_failures + 1)
        step.commands.append(e.ReportSetUpFailure(cause))
    step.missed(setting_up.request.number)
    step.answer(e.Fail(setting_up.request.number, None, cause, error))


def trigger_taken(step: Step, checkpoint_id: int, attempt: AttemptId) -> None:
    checkpoint = step.state.pending.get(checkpoint_id)
    if checkpoint is None or attempt not in checkpoint.tasks.values():
        return
    checkpoint = replace(checkpoint, triggered=checkpoint.triggered | {attempt})
    step.put(checkpoint)
    if len(checkpoint.triggered) == len(checkpoint.tasks):
        step.set(trigger_failures=0)
