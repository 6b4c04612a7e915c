"""Authorize requests by tokens of service accounts, and the Roles and ClusterRoles bound to them.

In: a bearer token and a request. Out: the user, and whether a rule allows the request. As on every server, users cannot
create or bind a role with more permissions than they have.
"""

import secrets
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

from springtide_lab.kubernetes.api.object_store import Store
from springtide_lab.kubernetes.api.status_errors import Json
from springtide_lab.kubernetes.objects.kinds import RBAC

MASTERS = "system:masters"


@dataclass(frozen=True, slots=True)
class User:
    """The user of a request."""

    name: str
    groups: tuple[str, ...] = ()

    @property
    def may_all(self) -> bool:
        return MASTERS in self.groups


@dataclass(frozen=True, slots=True, kw_only=True)
class Ask:
    """A request to authorize."""

    verb: str
    group: str
    resource: str
    """Resource with its subresource, for example `pods/log`."""
    namespace: str = ""
    name: str = ""


@dataclass(slots=True)
class Tokens:
    """Users and service accounts by token."""

    _users: dict[str, User] = field(default_factory=dict)
    _accounts: dict[str, tuple[str, str, str]] = field(default_factory=dict)

    def admin(self) -> str:
        token = secrets.token_urlsafe(24)
        self._users[token] = User("kubernetes-admin", (MASTERS, "system:authenticated"))
        return token

    def of_account(self, namespace: str, name: str, uid: str) -> str:
        token = secrets.token_urlsafe(24)
        self._accounts[token] = (namespace, name, uid)
        return token

    def user(self, token: str, store: Store) -> User | None:
        """Return the user of a token, or None if it is unknown or its account was deleted."""
        if token in self._users:
            return self._users[token]
        if token not in self._accounts:
            return None
        namespace, name, uid = self._accounts[token]
        account = store.get("serviceaccounts", (namespace, name))
        if account is None or account["metadata"]["uid"] != uid:
            return None
        groups = ("system:serviceaccounts", f"system:serviceaccounts:{namespace}", "system:authenticated")
        return User(f"system:serviceaccount:{namespace}:{name}", groups)


def allowed(store: Store, user: User, ask: Ask) -> bool:
    return user.may_all or any(covers(rule, ask) for rule in rules_of(store, user, ask.namespace))


def rules_of(store: Store, user: User, namespace: str) -> Iterator[Json]:
    """Yield all rules that apply to a user, cluster-wide and in one namespace."""
    bindings = [(each, "") for each in store.all(f"clusterrolebindings.{RBAC}")]
    if namespace:
        bindings += [(each, namespace) for each in store.all(f"rolebindings.{RBAC}", namespace)]
    for binding, where in bindings:
        if any(_is_subject(subject, user, where) for subject in binding.get("subjects") or []):
            yield from rules_behind(store, binding["roleRef"], where)


def rules_behind(store: Store, reference: Json, namespace: str) -> list[Json]:
    """Return the rules of the role that a binding refers to; none if the role does not exist."""
    if reference["kind"] == "ClusterRole":
        role = store.get(f"clusterroles.{RBAC}", ("", reference["name"]))
    else:
        role = store.get(f"roles.{RBAC}", (namespace, reference["name"]))
    return list((role or {}).get("rules") or [])


def _is_subject(subject: Json, user: User, namespace: str) -> bool:
    if subject["kind"] == "ServiceAccount":
        return user.name == f"system:serviceaccount:{subject.get('namespace', namespace)}:{subject['name']}"
    if subject["kind"] == "Group":
        return subject["name"] in user.groups
    return bool(subject["name"] == user.name)


def covers(rule: Json, ask: Ask) -> bool:
    if not _named(rule.get("verbs"), ask.verb) or not _named(rule.get("apiGroups"), ask.group):
        return False
    _, _, sub = ask.resource.partition("/")
    resources = rule.get("resources") or []
    fits = "*" in resources or ask.resource in resources or (bool(sub) and f"*/{sub}" in resources)
    names = rule.get("resourceNames") or []
    return fits and (not names or ask.name in names)


def _named(listed: Any, wanted: str) -> bool:
    return "*" in (listed or []) or wanted in (listed or [])


def beyond(store: Store, user: User, rules: list[Json], namespace: str) -> list[str]:
    """Return the permissions of these rules that the user lacks, as strings of verb and resource."""
    if user.may_all:
        return []
    missing = []
    for rule in rules:
        for group in rule.get("apiGroups") or []:
            for resource in rule.get("resources") or []:
                for verb in rule.get("verbs") or []:
                    for name in rule.get("resourceNames") or [""]:
                        ask = Ask(verb=verb, group=group, resource=resource, namespace=namespace, name=name)
                        if not allowed(store, user, ask):
                            missing.append(f"{verb} {resource}.{group} {name}".strip())
    return missing
