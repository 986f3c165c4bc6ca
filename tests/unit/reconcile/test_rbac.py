"""What is generated from the table of rights and the CRDs is what lies in the tree."""

from __future__ import annotations

from tunewright_operator.reconcile import rbac


def test_the_roles_and_the_charts_files_are_not_stale() -> None:
    assert rbac.stale() == []


def test_no_right_is_on_secrets_and_none_escalates() -> None:
    everything = rbac.RIGHTS + rbac.CLUSTER
    assert not [right for right in everything if "secrets" in right.resources]
    assert not [right for right in everything if {"*", "bind", "escalate", "impersonate"} & set(right.verbs)]
    assert not [right for right in everything if "*" in (*right.resources, right.group)]


def test_what_a_cluster_wide_operator_may_do_besides_is_reading() -> None:
    assert {verb for right in rbac.CLUSTER for verb in right.verbs} <= {"get", "list", "watch"}
