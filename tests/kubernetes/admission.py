"""What the emulated API server accepts: objects that the real one's schemas allow, from those who may make them."""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

from tests.kubernetes import schemas
from tests.kubernetes.manifests import manifests
from tests.kubernetes.store import Object, Refusal

LABEL = re.compile(r"([A-Za-z0-9]([A-Za-z0-9_.-]{0,61}[A-Za-z0-9])?)?")
NAME = re.compile(r"[a-z0-9]([a-z0-9.-]{0,251}[a-z0-9])?")
HOST = re.compile(r"[a-z0-9]([a-z0-9-]{0,61}[a-z0-9])?")


def admit(resource: str, new: Object, *, strict: bool) -> None:
    """Raises Refusal 400 for unknown fields, if they are looked for, and 422 for what is wrong."""
    name = new.get("metadata", {}).get("name", "")
    if strict and (unknown := [f"{path}: {what}" for path, what in schemas.faults(new) if "unexpected" in what]):
        raise Refusal(400, "BadRequest", f"strict decoding error: {'; '.join(unknown)}")
    wrong = [*schemas.faults(new, strict=False), *(_pod_faults(new) if resource == "pods" else ())]
    if wrong:
        said = ", ".join(f"{path}: {what}" for path, what in wrong)
        raise Refusal(422, "Invalid", f'{new.get("kind")} "{name}" is invalid: {said}', wrong)


def _pod_faults(pod: Object) -> Iterator[tuple[str, str]]:
    """Yield what the schemas cannot say."""
    metadata, spec = pod.get("metadata", {}), pod.get("spec", {})
    if not NAME.fullmatch(metadata.get("name", "")):
        yield "metadata.name", "Invalid value: must be a lowercase RFC 1123 subdomain"
    for key, text in metadata.get("labels", {}).items():
        if not LABEL.fullmatch(str(text)) or not LABEL.fullmatch(key.rpartition("/")[2]):
            yield "metadata.labels", f"Invalid value: {key}={text}"
    for index, owner in enumerate(metadata.get("ownerReferences", [])):
        if not owner.get("uid"):
            yield f"metadata.ownerReferences[{index}].uid", "Invalid value: must not be empty"
    for key in ("hostname", "subdomain"):
        if key in spec and not HOST.fullmatch(spec[key]):
            yield f"spec.{key}", "Invalid value: must be an RFC 1123 label"
    if spec.get("restartPolicy", "Always") not in ("Always", "OnFailure", "Never"):
        yield "spec.restartPolicy", "Unsupported value"
    volumes = {volume.get("name") for volume in spec.get("volumes", [])}
    for index, container in enumerate(spec.get("containers", [])):
        path = f"spec.containers[{index}]"
        if not container.get("image"):
            yield f"{path}.image", "Required value"
        for number, mount in enumerate(container.get("volumeMounts", [])):
            if mount.get("name") not in volumes:
                yield f"{path}.volumeMounts[{number}].name", f'Not found: "{mount.get("name")}"'


@dataclass(frozen=True)
class Rights:
    """What a service account may do, as the Role of deploy/kubernetes says."""

    account: str
    namespace: str
    rules: tuple[dict[str, Any], ...]

    @property
    def user(self) -> str:
        return f"system:serviceaccount:{self.namespace}:{self.account}"

    def require(self, verb: str, group: str, resource: str, namespace: str) -> None:
        """Raises Refusal 403."""
        allowed = namespace == self.namespace and any(
            group in rule["apiGroups"] and resource in rule["resources"] and verb in rule["verbs"]
            for rule in self.rules
        )
        if not allowed:
            raise Refusal(
                403,
                "Forbidden",
                f'{resource} is forbidden: User "{self.user}" cannot {verb} resource "{resource}" in API group '
                f'"{group}" in the namespace "{namespace}"',
            )


def rights_of(account: str) -> Rights:
    """Return the rights of a service account in the manifests."""
    found = [each for _, each in manifests()]
    (binding,) = (
        each
        for each in found
        if each["kind"] == "RoleBinding" and account in [subject["name"] for subject in each["subjects"]]
    )
    (role,) = (
        each for each in found if each["kind"] == "Role" and each["metadata"]["name"] == binding["roleRef"]["name"]
    )
    return Rights(account, binding["metadata"]["namespace"], tuple(role["rules"]))
