"""What only several objects together show: equal names, claims that nobody makes, regions."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from typing import Final

from stationmaster.diagnosis.lint.findings import Found, found
from stationmaster.diagnosis.lint.manifest import TRAINING_KINDS, Manifest
from stationmaster.diagnosis.lint.placeholders import is_unresolved
from stationmaster.diagnosis.lint.reading import Path
from stationmaster.diagnosis.lint.values import mapping, sequence, text
from stationmaster.domain.spelling import num_edits

_REGIONS: Final = (
    re.compile(r"\.dkr\.ecr\.([a-z]{2}-[a-z-]+-\d)\.amazonaws\.com"),
    re.compile(r"\.fsx\.([a-z]{2}-[a-z-]+-\d)\.amazonaws\.com"),
)
_ZONE: Final = re.compile(r"([a-z]{2}-[a-z-]+-\d)[a-z]")
_MOST_NAMES: Final = 10
_ZONE_LABELS: Final = ("topology.kubernetes.io/zone", "failure-domain.beta.kubernetes.io/zone")


def check_all(manifests: Sequence[Manifest]) -> Iterator[tuple[Manifest, Found]]:
    """Check every object of one call, whatever file it is in."""
    yield from _same(manifests)
    yield from _claims(manifests)
    yield from _regions(manifests)
    yield from _etcd(manifests)


# Of these even the same text twice is a mistake: one job is started once, and files for variants of
# a cluster that differ in nothing are no variants.
_ONCE: Final = (*TRAINING_KINDS, "Job", "Pod", "ClusterConfig")


def _same(manifests: Sequence[Manifest]) -> Iterator[tuple[Manifest, Found]]:
    taken: dict[tuple[str, str, str, str], Manifest] = {}
    for manifest in manifests:
        metadata = mapping(manifest.data.get("metadata"))
        name = text(metadata.get("name"))
        if not name or is_unresolved(name):
            continue
        key = (manifest.group, manifest.kind, text(metadata.get("namespace")), name)
        first = taken.setdefault(key, manifest)
        is_equal = first.data == manifest.data
        if first is manifest or (is_equal and manifest.kind not in _ONCE):
            continue
        place = f"{first.file}:{first.document.line(('metadata', 'name'))}"
        how = (
            "and the same in everything else" if is_equal else "and the later replaces the earlier"
        )
        said = found(
            "same-object",
            ("metadata", "name"),
            f'a second {manifest.kind} "{name}", the first is at {place}, {how}',
            fix="give each its own name, e.g. after the recipe and the run, or leave one out",
            severity="error" if first.file == manifest.file else "warning",
        )
        yield manifest, said


def _claims(manifests: Sequence[Manifest]) -> Iterator[tuple[Manifest, Found]]:
    made = {each.name: each for each in manifests if each.kind == "PersistentVolumeClaim"}
    if not made:
        return
    known = list(made)[:_MOST_NAMES]
    for manifest in manifests:
        for path, name in _used_claims(manifest):
            if name in made:
                yield from _modes(manifest, path, name, made[name])
            elif not is_unresolved(name):
                near = min(known, key=lambda each: num_edits(name[:80], each[:80]))
                said = found(
                    "claim",
                    path,
                    f'the claim "{name}" is none of those that are made here: {", ".join(known)}',
                    fix=f"did you mean {near}",
                )
                yield manifest, said


def _used_claims(manifest: Manifest) -> Iterator[tuple[Path, str]]:
    for pod in manifest.pods:
        for index, volume in enumerate(sequence(pod.spec.get("volumes"))):
            source = mapping(mapping(volume).get("persistentVolumeClaim"))
            name = text(source.get("claimName"))
            if name:
                at = (*pod.path, "volumes", index, "persistentVolumeClaim", "claimName")
                yield at, name


def _modes(
    manifest: Manifest, path: Path, name: str, claim: Manifest
) -> Iterator[tuple[Manifest, Found]]:
    modes = sequence(claim.spec.get("accessModes"))
    if modes and "ReadWriteMany" not in modes and manifest.trains and (manifest.num_pods or 1) > 1:
        said = found(
            "claim",
            path,
            f'{manifest.num_pods} pods mount the claim "{name}", whose access modes are '
            f"{', '.join(map(str, modes))}: on a second node it cannot be mounted",
            fix="make the claim with accessModes: [ReadWriteMany]",
        )
        yield manifest, said


def _regions(manifests: Sequence[Manifest]) -> Iterator[tuple[Manifest, Found]]:
    first: tuple[str, str] | None = None
    for manifest in manifests:
        for path, region, what in _named_regions(manifest):
            if first is None:
                first = region, what
            elif region != first[0]:
                said = found(
                    "image-region",
                    path,
                    f"{what} is in {region}, and {first[1]} in {first[0]}: a login to ECR is "
                    "for one region, and file systems are mounted in theirs only",
                    fix="use one region",
                )
                yield manifest, said


def _named_regions(manifest: Manifest) -> Iterator[tuple[Path, str, str]]:
    for pod in manifest.pods:
        for container in pod.containers:
            match = _REGIONS[0].search(container.image)
            if match is not None:
                yield (*container.path, "image"), match[1], "an image"
        for label in _ZONE_LABELS:
            zone = _ZONE.fullmatch(text(mapping(pod.spec.get("nodeSelector")).get(label)))
            if zone is not None:
                yield (*pod.path, "nodeSelector", label), zone[1], "a zone"
    attributes = mapping(mapping(manifest.spec.get("csi")).get("volumeAttributes"))
    match = _REGIONS[1].search(text(attributes.get("dnsname")))
    if match is not None:
        at = ("spec", "csi", "volumeAttributes", "dnsname")
        yield at, match[1], "a file system"


def _etcd(manifests: Sequence[Manifest]) -> Iterator[tuple[Manifest, Found]]:
    """Check that no two jobs share an etcd of the name `etcd`, which goes with its job."""
    jobs = {each.file for each in manifests if each.kind == "PyTorchJob"}
    for manifest in manifests:
        if manifest.kind not in ("Deployment", "StatefulSet") or manifest.name != "etcd":
            continue
        if manifest.file in jobs:
            said = found(
                "etcd-beside-job",
                ("metadata", "name"),
                'etcd is in the file of a job: "kubectl delete -f" ends every other job\'s '
                "rendezvous too",
                fix="keep it in a file of its own, give each job one under the job's name, or "
                "use c10d, which needs none",
            )
            yield manifest, said
