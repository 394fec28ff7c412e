"""The daemon as a whole: `/config`, `/overview`, `/jobmanager/config`, `/cluster/handover`."""

from __future__ import annotations

import os
import time
from collections import Counter
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial
from pathlib import Path

from aiohttp import web

from minflinkd.config.options import Item
from minflinkd.ha.standing import Standing, Standings
from minflinkd.rest import route
from minflinkd.rest.backend import Backend, json_answer, json_bytes
from minflinkd.rest.identity.roles import Role
from minflinkd.rest.overviews import EncodedCluster
from minflinkd.rest.schemas import (
    ClusterInfo,
    ClusterOverview,
    ConfigEntry,
    DaemonInfo,
    DashboardConfiguration,
    Features,
    HandoverInfo,
    LeaderInfo,
    OptionInfo,
    OptionOrigin,
    StandbyInfo,
    StartingInfo,
)
from minflinkd.rpc.jobs import JobOverview, JobStatus
from minflinkd.rpc.messages import ResourceOverview
from minflinkd.runtime.log_tail import Kept
from minflinkd.runtime.secrets import MASK, is_sensitive

FLINK_VERSION = "2.3.0"  # the version whose REST API the endpoint implements
REFRESH_INTERVAL = 3000  # milliseconds, for Flink's dashboard


@dataclass(frozen=True, kw_only=True)
class About:
    """What the endpoint shows about the daemon: its version, current options, addresses, and who leads."""

    version: str
    config_items: Callable[[], Iterable[Item]]
    blob_url: Callable[[], str]
    standing: Standings = Standing
    directories: tuple[Path, ...] = ()  # that the daemon writes to
    silent_after: float = 3.0  # seconds in which a TaskManager that is well is heard of
    log_tail: Callable[[], Kept] | None = None  # the last lines of its log; None: nobody keeps them


class ClusterRoutes:
    def __init__(self, backend: Backend, about: About) -> None:
        self._backend = backend
        self._about = about
        self._overview = EncodedCluster(partial(overview_of, about))

    def routes(self) -> list[route.Route]:
        return [
            route.get(
                "/config",
                self.config,
                Role.VIEW,
                "What Flink's dashboard reads",
                {200: DashboardConfiguration},
                more="`minflinkd.blob-server` is where artifacts are uploaded",
            ),
            route.get(
                "/overview",
                self.overview,
                Role.VIEW,
                "TaskManagers, slots, jobs and daemons",
                {200: ClusterOverview},
                more=(
                    "Under `minflinkd`: the TaskManagers that are starting, the `leader` (`name`, `url`, `since`, "
                    "`epoch`), the `standbys` (`name`, `url`), `trouble` while the leader gets no answer from "
                    "ZooKeeper, and `silent-after`: milliseconds of silence after which a TaskManager needs attention"
                ),
            ),
            route.get(
                "/jobmanager/config",
                self.daemon_config,
                Role.VIEW,
                "The options in force",
                {200: list[ConfigEntry]},
                more=(
                    "Sensitive values are masked. `minflinkd.origins`: where the option was set, for a map each "
                    "`entry`. `layer`: `file`, `environment` or `command-line`; `place`: the file with its line, or "
                    "the variable. No origin: the value is the default"
                ),
            ),
            route.post(
                "/cluster/handover",
                self.hand_over,
                Role.ADMIN,
                "End the daemon, and leave its TaskManagers and tasks to the next one",
                {202: HandoverInfo},
                more="Not in Flink. The answer has the daemon's `pid`",
            ),
        ]

    async def config(self, _: web.Request) -> web.Response:
        local = time.localtime()
        return json_answer(
            DashboardConfiguration(
                refresh_interval=REFRESH_INTERVAL,
                timezone_name=local.tm_zone,
                timezone_offset=local.tm_gmtoff * 1000,
                flink_version=FLINK_VERSION,
                flink_revision=f"minflinkd {self._about.version}",
                features=Features(web_submit=self._backend.uploads is not None),
                minflinkd=DaemonInfo(version=self._about.version, blob_server=self._about.blob_url()),
            )
        )

    async def overview(self, _: web.Request) -> web.Response:
        jobs = await self._backend.jobs.get()
        resources = await self._backend.resources.get()
        return json_bytes(self._overview.of(jobs, resources, self._about.standing()))

    async def hand_over(self, _: web.Request) -> web.Response:
        """Begin to end the daemon. Its TaskManagers and tasks keep running, for the next daemon (A15)."""
        self._backend.hand_over()
        return json_answer(HandoverInfo(pid=os.getpid()), status=202)

    async def daemon_config(self, _: web.Request) -> web.Response:
        return json_answer(config_entries(self._about))


def config_entries(about: About) -> list[ConfigEntry]:
    """Return the options in force, without secrets."""
    return [_entry(item) for item in sorted(about.config_items(), key=lambda item: item.key)]


def _entry(item: Item) -> ConfigEntry:
    origins = tuple(OptionOrigin(layer=one.layer, place=one.place, entry=one.entry) for one in item.origins)
    value = MASK if is_sensitive(item.key) else item.value
    return ConfigEntry(key=item.key, value=value, minflinkd=OptionInfo(origins=origins))


def overview_of(
    about: About, jobs: tuple[JobOverview, ...], resources: ResourceOverview, standing: Standing
) -> ClusterOverview:
    leader = standing.leader
    by_status = Counter(job.status for job in jobs)
    ended = {status: by_status[status] for status in JobStatus if status.terminal}
    return ClusterOverview(
        taskmanagers=resources.task_managers,
        slots_total=resources.slots_total,
        slots_available=resources.slots_free,
        jobs_running=len(jobs) - sum(ended.values()),  # all that have not ended, as Flink counts
        jobs_finished=ended[JobStatus.FINISHED],
        jobs_cancelled=ended[JobStatus.CANCELED],
        jobs_failed=ended[JobStatus.FAILED],
        flink_version=FLINK_VERSION,
        flink_commit=f"minflinkd-{about.version}",
        minflinkd=ClusterInfo(
            version=about.version,
            leader=LeaderInfo(name=leader.name, url=leader.url, since=leader.leading_since_ms, epoch=leader.epoch),
            standbys=tuple(StandbyInfo(name=each.name, url=each.url) for each in standing.standbys),
            trouble=standing.trouble,
            starting=tuple(
                StartingInfo(id=s.resource_id, since=s.since_ms, waiting=s.waiting) for s in resources.starting
            ),
            taskmanagers_lost=resources.lost,
            pending_needs=resources.pending_needs,
            silent_after=round(1000 * about.silent_after),
        ),
    )
