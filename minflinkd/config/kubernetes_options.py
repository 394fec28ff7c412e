"""Options of TaskManagers that are Pods (`resourcemanager.driver: kubernetes`)."""

from __future__ import annotations

from dataclasses import dataclass

from minflinkd.config.declaration import option


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubernetes:
    """TaskManagers as Pods."""

    pod_template_file: str = option(
        "kubernetes.pod-template-file.taskmanager",
        "",
        "YAML file with the Pod from which those of TaskManagers are made: its container `taskmanager` has the image, "
        "the resources, and the volumes with the configuration and the cluster's secret. docs/kubernetes.md has one.",
    )
    namespace: str = option(
        "kubernetes.namespace",
        "",
        "Namespace of the TaskManagers' Pods. Empty: that of the daemon's Pod.",
    )
    subdomain: str = option(
        "kubernetes.taskmanager.subdomain",
        "",
        "Name of a headless Service that selects the TaskManagers' Pods. TaskManagers then reach each other as "
        "<id>.<subdomain>.<namespace>.svc, for which one certificate with a wildcard is enough. Empty: they use the "
        "addresses of their Pods, which no certificate can name beforehand.",
    )
    api_server: str = option(
        "kubernetes.api-server",
        "",
        "URL of the API server. Empty: the one of the cluster in which the daemon's Pod is.",
    )
    token_file: str = option(
        "kubernetes.token-file",
        "",
        "File with the token that the daemon shows to the API server. It is read again every 30 s. Empty: that of its "
        "Pod's service account.",
    )
    ca_file: str = option(
        "kubernetes.ca-file",
        "",
        "PEM file with the CA of the API server. Empty: that of the Pod's service account, otherwise the system's CAs.",
    )
