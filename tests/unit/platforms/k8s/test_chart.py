"""The Helm chart matches `springtide k8s install`."""

import base64
import importlib.util
import re

import pytest
import yaml

from springtide.platforms.k8s.objects import install_manifests
from tests.architecture import sources


def generated():
    spec = importlib.util.spec_from_file_location("helm_chart", sources.ROOT / "tools" / "helm_chart.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module.files()


BRANCH = re.compile(
    r"\{\{- if (not )?\.Values\.([a-z.]+) \}\}\n((?:(?!\{\{- (?:if|else|end)).)*)"
    r"(?:\{\{- else \}\}\n((?:(?!\{\{- (?:if|end)).)*))?\{\{- end \}\}\n",
    re.DOTALL,
)


def branch_of(found, values):
    given = bool(values[found[2].rpartition(".")[2]])
    return (found[3] if given is not bool(found[1]) else found[4]) or ""


def rendered(values):
    """Render our templates like Helm: they use its `if` and a few names."""
    objects = []
    for name, text in sorted(generated().items()):
        if not name.startswith(("crds/", "templates/")):
            continue
        while (chosen := BRANCH.sub(lambda found: branch_of(found, values), text)) != text:  # the inner ones first
            text = chosen
        text = re.sub(r"\{\{- \$known[^\n]*\n", "", text)
        for mark, value in {
            "{{ .Values.image }}": values["image"],
            "{{ .Release.Namespace }}": values["namespace"],
            "{{ .Values.only }}": values["only"],
            "{{ .Values.brain.replicas }}": "2",
            "{{ .Values.brain.database | b64enc }}": base64.b64encode(values["database"].encode()).decode(),
        }.items():
            text = text.replace(mark, value)
        text = re.sub(r"\{\{ if \$known \}\}.*?\{\{ end \}\}", base64.b64encode(b"ab").decode(), text)
        text = re.sub(r"\{\{ required \"[^\"]*\" \.Values\.brain\.capacity \}\}", "64", text)
        assert "{{" not in text, f"{name} has a template that this test does not know"
        objects += [each for each in yaml.safe_load_all(text) if each]
    return objects


def by_name(objects):
    return {(each["kind"], each["metadata"]["name"]): each for each in objects}


@pytest.mark.parametrize("only", ["", "ads"], ids=["all namespaces", "one namespace"])
@pytest.mark.parametrize("database", ["", "postgresql://b:pw@db/b"], ids=["alone", "with a brain"])
def test_chart_and_install_agree(database, only):
    values = {"image": "registry/springtide:9", "namespace": "tide", "database": database, "only": only}
    plan = install_manifests.InstallPlan(
        image=values["image"],
        namespace="tide",
        only=only,
        database=database,
        brain_secret="ab" if database else "",
        brain_capacity="64" if database else "",
    )
    wanted = [each for each in install_manifests.everything(plan) if each["kind"] != "Namespace"]
    assert by_name(rendered(values)) == by_name(wanted)
