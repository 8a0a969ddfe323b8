"""What people may do with kubectl: what hurts when it is more."""

from __future__ import annotations

from stationmaster.domain.names import NAMESPACE, PEOPLE
from stationmaster.rendering.people import render_people_rights


def test_people_exec_in_the_products_namespace_and_elsewhere_only_read() -> None:
    objects = {item["kind"]: item for item in render_people_rights()}

    assert objects["Role"]["metadata"]["namespace"] == NAMESPACE
    here = {each for rule in objects["Role"]["rules"] for each in rule["resources"]}
    assert here == {"pods/exec"}
    for rule in objects["ClusterRole"]["rules"]:
        assert set(rule["verbs"]) == {"get", "list", "watch"}
        assert not {"secrets", "*"} & {*rule["resources"], *rule["apiGroups"]}


def test_rights_are_those_of_the_group_that_access_entries_name() -> None:
    for item in render_people_rights():
        if item["kind"].endswith("Binding"):
            (subject,) = item["subjects"]
            assert (subject["kind"], subject["name"]) == ("Group", PEOPLE)
            assert item["roleRef"]["kind"] == item["kind"].removesuffix("Binding")
            assert not PEOPLE.startswith(("system:", "eks:", "aws:", "amazon:", "iam:"))
