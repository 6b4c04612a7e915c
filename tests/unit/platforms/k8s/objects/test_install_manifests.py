import base64
import dataclasses

import pytest

from springtide.brain.service import serve
from springtide.platforms.k8s.api import kinds
from springtide.platforms.k8s.objects import install_manifests, job_objects
from tests.architecture import sources
from tests.unit.platforms.k8s import making

PLAN = install_manifests.InstallPlan(image="springtide:1")
BRAINY = install_manifests.InstallPlan(
    image="springtide:1", database="postgresql://b:pw@db/brain", brain_secret="ab", brain_capacity="64,256G"
)


def of_kind(plan, kind):
    return [body for body in install_manifests.everything(plan) if body["kind"] == kind]


def grants(granted, wanted):
    """Whether these rights cover a rule: an account can grant no more than it has."""
    for group in wanted["apiGroups"]:
        for resource in wanted["resources"]:
            for verb in wanted["verbs"]:
                if not any(
                    group in each["apiGroups"] and resource in each["resources"] and verb in each["verbs"]
                    for each in granted
                ):
                    return False
    return True


@pytest.mark.parametrize("only", ["", "ads"])
def test_operator_may_grant_the_masters_rights(only):
    (role,) = [
        each
        for each in install_manifests.operator_rights(install_manifests.InstallPlan(image="i", only=only))
        if "rules" in each
    ]
    for rule in job_objects.rights(making.job())["rules"]:
        assert grants(role["rules"], rule), rule
    verbs = {verb for rule in role["rules"] for verb in rule["verbs"]}
    assert not verbs & {"*", "escalate", "bind", "impersonate", "deletecollection"}
    assert not any("*" in rule["apiGroups"] + rule["resources"] for rule in role["rules"])


def test_operator_reads_no_secret():
    secrets = [each for each in install_manifests.OPERATOR_RIGHTS if each.resource == "secrets"]
    assert [each.verbs for each in secrets] == [("create",)]


def test_every_right_has_its_reason():
    assert all(
        each.why
        for each in (*install_manifests.OPERATOR_RIGHTS, *install_manifests.EDIT_RIGHTS, *install_manifests.VIEW_RIGHTS)
    )


def test_docs_list_every_operator_right():
    page = (sources.ROOT / "docs" / "design" / "kubernetes.md").read_text()
    for each in install_manifests.OPERATOR_RIGHTS:
        group = f" ({each.group})" if each.group else ""
        assert f"| `{each.resource}`{group} | {', '.join(each.verbs)} | {each.why} |" in page


def test_single_namespace_install_has_no_cluster_rights():
    plan = install_manifests.InstallPlan(image="i", only="ads")
    assert [each["kind"] for each in install_manifests.operator_rights(plan)] == ["Role", "RoleBinding"]
    assert all(each["metadata"]["namespace"] == "ads" for each in install_manifests.operator_rights(plan))
    assert not any("nodes" in rule["resources"] for rule in install_manifests.operator_rights(plan)[0]["rules"])
    assert "ads" in install_manifests.operator_deployment(plan)["spec"]["template"]["spec"]["containers"][0]["command"]


def test_namespace_editor_may_submit_jobs():
    edit, view = install_manifests.user_roles()
    assert edit["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-edit"] == "true"
    assert view["metadata"]["labels"]["rbac.authorization.k8s.io/aggregate-to-view"] == "true"
    assert all(set(rule["verbs"]) <= {"get", "list", "watch"} for rule in view["rules"])


@pytest.mark.parametrize("plan", [PLAN, BRAINY], ids=["alone", "with a brain"])
def test_our_pods_have_no_privileges_on_their_node(plan):
    for body in of_kind(plan, "Deployment"):
        spec = body["spec"]["template"]["spec"]
        assert spec["securityContext"]["runAsNonRoot"]
        assert spec["securityContext"]["seccompProfile"] == {"type": "RuntimeDefault"}
        for container in spec["containers"]:
            assert container["securityContext"]["readOnlyRootFilesystem"]
            assert container["securityContext"]["capabilities"] == {"drop": ["ALL"]}
        labels = body["spec"]["template"]["metadata"]["labels"]
        assert body["spec"]["selector"]["matchLabels"].items() <= labels.items()


def test_brain_is_found_by_its_service_and_its_database_url_is_hidden():
    (secret,) = of_kind(BRAINY, "Secret")
    assert base64.b64decode(secret["data"]["database"]).decode() == BRAINY.database
    operator, brain = (install_manifests.operator_deployment(BRAINY), install_manifests.brain_deployment(BRAINY))
    assert "springtide-brain.springtide.svc:7790" in operator["spec"]["template"]["spec"]["containers"][0]["command"]
    container = brain["spec"]["template"]["spec"]["containers"][0]
    assert "DATABASE" not in str(container["command"]), "the kubelet would put its value there"
    source = {"secretKeyRef": {"name": "springtide-brain", "key": "database"}}
    assert {"name": "SPRINGTIDE_BRAIN_DATABASE", "valueFrom": source} in container["env"]
    assert brain["spec"]["replicas"] == 2
    (service,) = of_kind(BRAINY, "Service")
    assert service["spec"]["selector"].items() <= brain["spec"]["template"]["metadata"]["labels"].items()
    assert not of_kind(PLAN, "Service")


def test_manifests_are_ordered_by_dependency_with_the_operator_last():
    order = [body["kind"] for body in install_manifests.everything(BRAINY)]
    assert order[0] == "Namespace" and order[-1] == "Deployment"
    assert order.index("CustomResourceDefinition") < order.index("ClusterRole")


def test_all_installed_objects_are_of_a_known_kind():
    assert all(isinstance(kinds.kind_of(body), kinds.ObjectKind) for body in install_manifests.everything(BRAINY))


def test_tls_brain_and_operator_mount_their_own_certificates():
    files = serve.make_certificates()
    plan = dataclasses.replace(BRAINY, brain_files=files)
    (kept,) = [each for each in of_kind(plan, "Secret") if each["metadata"]["name"] == install_manifests.BRAIN_TLS]
    assert {name: base64.b64decode(part) for name, part in kept["data"].items()} == files
    for body, role, command in (
        (install_manifests.brain_deployment(plan), "brain", "--tls"),
        (install_manifests.operator_deployment(plan), "master", "--brain-tls"),
    ):
        spec = body["spec"]["template"]["spec"]
        (container,) = spec["containers"]
        assert container["command"][container["command"].index(command) + 1] == install_manifests.TLS_FOLDER
        assert install_manifests.TLS_FOLDER in [each["mountPath"] for each in container["volumeMounts"]]
        (volume,) = [each["secret"] for each in spec["volumes"] if each["name"] == "brain-tls"]
        assert {each["key"] for each in volume["items"]} == {"ca.crt", f"{role}.crt", f"{role}.key"}
    assert not install_manifests.brain_certificates(BRAINY)
    assert "--tls" not in str(install_manifests.brain_deployment(BRAINY)) + str(
        install_manifests.operator_deployment(BRAINY)
    )
