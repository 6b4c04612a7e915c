"""Pod placement and the reasons against a node."""

from springtide_lab.kubernetes.control import scheduler


def node(name, cpu="2", **spec):
    return {
        "metadata": {"name": name, "labels": {"disk": "ssd" if name == "a" else "hdd"}},
        "spec": spec,
        "status": {"allocatable": {"cpu": cpu, "memory": "4Gi", "pods": "10"}},
    }


def pod(name, cpu, node_name="", **spec):
    container = {"name": "m", "resources": {"requests": {"cpu": cpu}}}
    body = {"containers": [container], **({"nodeName": node_name} if node_name else {}), **spec}
    return {"metadata": {"name": name, "creationTimestamp": name}, "spec": body, "status": {}}


def bindings(decided):
    return [(each["metadata"]["name"], where) for each, where in decided.bind]


def test_pods_go_to_the_emptiest_suitable_node():
    decided = scheduler.place(
        [pod("x", "1"), pod("y", "1"), pod("z", "500m")], [pod("old", "1", node_name="a")], [node("a"), node("b")]
    )
    assert bindings(decided) == [("x", "b"), ("y", "a"), ("z", "b")]


def test_selectors_and_taints_exclude_nodes_with_counted_reasons():
    tainted = node("b", taints=[{"key": "spot", "value": "yes", "effect": "NoSchedule"}])
    picky = pod("x", "1", nodeSelector={"disk": "tape"})
    decided = scheduler.place([picky], [], [node("a"), tainted])
    assert decided.nowhere[0][1] == (
        "0/2 nodes are available: 1 node(s) didn't match Pod's node affinity/selector, "
        "1 node(s) had untolerated taint {spot: yes}."
    )
    bears = pod("y", "1", nodeSelector={"disk": "hdd"}, tolerations=[{"key": "spot", "operator": "Exists"}])
    assert bindings(scheduler.place([bears], [], [node("a"), tainted])) == [("y", "b")]
