import pytest
from hypothesis import given
from hypothesis import strategies as st

from springtide import errors
from springtide.platforms.k8s.api import watch
from springtide.platforms.k8s.api.kinds import key_of


def thing(name, uid, version):
    return {"metadata": {"namespace": "n", "name": name, "uid": uid, "resourceVersion": str(version)}}


histories = st.lists(
    st.tuples(st.sampled_from(["make", "change", "delete", "forget"]), st.sampled_from("abc")), max_size=40
)


@given(histories)
def test_a_reader_has_what_the_cluster_has_whether_events_came_or_were_lost(history):
    """`forget`: a stretch of which no event arrives, and then all is read anew."""
    cluster, known, mirror, lost = {}, watch.KnownObjects(), {}, False

    def apply(changes):
        for change in changes:
            key = key_of(change.thing)[1]
            if change.what == "gone":
                assert mirror.pop(key)["metadata"]["uid"] == change.thing["metadata"]["uid"]
            else:
                assert (key in mirror) == (change.what == "changed")
                mirror[key] = change.thing

    for version, (step, name) in enumerate(history, 1):
        event = ""
        if step == "make" and name not in cluster:
            cluster[name], event = thing(name, f"uid-{version}", version), "ADDED"
        elif step == "change" and name in cluster:
            cluster[name], event = thing(name, cluster[name]["metadata"]["uid"], version), "MODIFIED"
        elif step == "delete" and name in cluster:
            old, event = cluster.pop(name), "DELETED"
        elif step == "forget":
            lost = not lost
            if not lost:
                apply(known.relisted(cluster.values()))
        if event and not lost:
            apply(known.apply(event, old if event == "DELETED" else cluster[name]))
    apply(known.relisted(cluster.values()))
    assert mirror == cluster
    assert known.relisted(cluster.values()) == []


def test_an_event_says_where_to_go_on_from():
    assert watch.parse_event(b'{"type":"BOOKMARK","object":{"metadata":{"resourceVersion":"9"}}}', "3")[1] == "9"
    assert watch.KnownObjects().apply("BOOKMARK", {}) == []


def test_a_forgotten_version_is_not_an_error_but_another_error_is():
    with pytest.raises(watch.Stale):
        watch.parse_event(b'{"type":"ERROR","object":{"code":410}}', "3")
    with pytest.raises(errors.ClusterUnreachable, match="etcd"):
        watch.parse_event(b'{"type":"ERROR","object":{"code":500,"message":"etcd"}}', "3")
    with pytest.raises(errors.ClusterUnreachable, match="no event"):
        watch.parse_event(b"<html>", "3")
