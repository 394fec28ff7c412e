"""Makes the launcher of TaskManagers that are Pods, from the configuration and what a Pod finds around it."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from pathlib import Path

from minflinkd.config.kubernetes_options import Kubernetes
from minflinkd.resourcemanager.kubernetes.access import access_of
from minflinkd.resourcemanager.kubernetes.client import KubernetesClient
from minflinkd.resourcemanager.kubernetes.launcher import KubernetesLauncher, Reports
from minflinkd.resourcemanager.kubernetes.template import Belonging, read_template

POD_NAME = "MINFLINKD_POD_NAME"  # variable: the daemon's Pod


async def kubernetes_launcher(
    options: Kubernetes,
    environ: Mapping[str, str],
    *,
    cluster_id: str,
    epoch: int,
    reports: Reports,
    leads: Callable[[], bool],
) -> KubernetesLauncher:
    """Return the launcher, after the API server has checked the template.

    Raises UnusablePodTemplate, UnusableAccess.
    """
    template = await asyncio.to_thread(read_template, Path(options.pod_template_file))
    access = await asyncio.to_thread(access_of, options, environ)
    belonging = Belonging(cluster_id, epoch, access.namespace, options.subdomain)
    launcher = KubernetesLauncher(
        KubernetesClient(access, select=belonging.select),
        template=template,
        belonging=belonging,
        own_pod=environ.get(POD_NAME, ""),
        reports=reports,
        leads=leads,
    )
    try:
        await launcher.check()
    except BaseException:
        await launcher.aclose()
        raise
    return launcher
