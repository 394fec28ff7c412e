"""The daemon and its cluster as a whole."""

from __future__ import annotations

from minflinkd.rest.schemas.answer import Answer


class Features(Answer, frozen=True, kw_only=True, rename="kebab"):
    """The actions that Flink's dashboard offers."""

    web_submit: bool = False  # of archives with a job file
    web_cancel: bool = True
    web_rescale: bool = False
    web_history: bool = False


class DaemonInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    version: str
    blob_server: str  # artifacts are uploaded there before a submission


class DashboardConfiguration(Answer, frozen=True, kw_only=True, rename="kebab"):
    refresh_interval: int
    timezone_name: str
    timezone_offset: int
    flink_version: str  # version of Flink's REST API
    flink_revision: str
    features: Features
    minflinkd: DaemonInfo


class StartingInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    id: str
    since: int
    waiting: str = ""  # why its process does not run yet, such as a Pod that is not scheduled


class LeaderInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    name: str  # host and process
    url: str
    since: int
    epoch: int  # higher than the epochs of all earlier leaders


class StandbyInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    name: str
    url: str


class ClusterInfo(Answer, frozen=True, kw_only=True, rename="kebab"):
    version: str
    leader: LeaderInfo | None = None  # the daemon that answers; None: an earlier version, which does not say
    standbys: tuple[StandbyInfo, ...] = ()
    trouble: str = ""  # with the coordination service; if it lasts, the leader stops acting
    starting: tuple[StartingInfo, ...]
    taskmanagers_lost: int
    pending_needs: int
    silent_after: int = 0  # milliseconds; 0: an earlier version, which does not say


class ClusterOverview(Answer, frozen=True, kw_only=True, rename="kebab"):
    taskmanagers: int
    slots_total: int
    slots_available: int
    taskmanagers_blocked: int = 0
    slots_free_and_blocked: int = 0
    jobs_running: int
    jobs_finished: int
    jobs_cancelled: int
    jobs_failed: int
    flink_version: str
    flink_commit: str
    minflinkd: ClusterInfo


class HandoverInfo(Answer, frozen=True, kw_only=True):
    pid: int  # of the daemon that is ending


class OptionOrigin(Answer, frozen=True, kw_only=True):
    layer: str  # file, environment, command-line
    place: str  # the file and the line, or the variable; empty: the command line
    entry: str = ""  # of an option that is a map


class OptionInfo(Answer, frozen=True, kw_only=True):
    origins: tuple[OptionOrigin, ...]  # where the option was set; empty: nowhere, so its value is the default


class ConfigEntry(Answer, frozen=True, kw_only=True):
    key: str
    value: str
    minflinkd: OptionInfo | None = None  # None: an earlier version, which does not say


class Health(Answer, frozen=True, kw_only=True):
    live: bool
    ready: bool
    role: str = "leading"  # or standby
    pid: int = 0  # of the daemon that answers; 0: its version is too old to say
    reasons: tuple[str, ...] = ()  # why it is not ready


class WhoAmI(Answer, frozen=True, kw_only=True, rename="kebab"):
    name: str
    role: str
    jobs: tuple[str, ...] = ()  # patterns of the names of jobs; empty: all jobs


class LoginLink(Answer, frozen=True, kw_only=True, rename="kebab"):
    path: str
    seconds: int  # for which it can be used, once
