"""Write the Helm chart, build/helm/springtide, from what `springtide k8s install` makes (`make chart`).

What differs from one release to another is put in as marks, which become Helm's templates once the YAML is written.
"""

import difflib
import pathlib
import sys
from typing import Any

ROOT = pathlib.Path(__file__).resolve().parent.parent
sys.path.insert(0, str(ROOT))

from springtide import __version__  # noqa: E402
from springtide.cli.cluster.k8s import as_yaml  # noqa: E402
from springtide.platforms.k8s.objects import crds, install_manifests  # noqa: E402

CHART = ROOT / "build" / "helm" / "springtide"
NOTE = "# Written by tools/helm_chart.py from springtide/platforms/k8s; change it there.\n"
REPLICAS = 987654321
SECRET = '{{ if $known }}{{ index $known.data "secret" }}{{ else }}{{ randAlphaNum 64 | sha256sum | b64enc }}{{ end }}'

CAPACITY = '{{ required "brain.capacity: what all jobs may take, such as 640,2560G" .Values.brain.capacity }}'

VALUES = f"""# Springtide's own image is in no registry unless you have put it there (deploy/Dockerfile): give yours.
# docs/how-to/kubernetes.md tells more.
image: springtide:{__version__}

# The one namespace whose jobs the operator looks after, with rights there and nowhere else; empty: all of the cluster.
only: ""

# A brain that plans for all jobs, over PostgreSQL. Without a database each job's master plans by itself.
brain:
  database: ""      # postgresql://user:password@host/name
  capacity: ""      # what all jobs together may take: CORES or CORES,SIZE such as 640,2560G
  replicas: 2
"""


ONLY = "{{ .Values.only }}"


def plan(*, brain: bool, only: str = ONLY) -> install_manifests.InstallPlan:
    """What is installed, with marks for what a user of the chart says."""
    given = dict(image="{{ .Values.image }}", namespace="{{ .Release.Namespace }}", only=only)
    if brain:
        given |= dict(
            database="-",
            brain_secret="-",
            brain_replicas=REPLICAS,
            brain_capacity=CAPACITY,
        )
    return install_manifests.InstallPlan(**given)


def template(*objects: dict[str, Any]) -> str:
    """YAML with Helm templates."""
    return as_yaml(list(objects)).replace(str(REPLICAS), "{{ .Values.brain.replicas }}")


def brain() -> str:
    """The database's secret is drawn once and kept over upgrades."""
    given = plan(brain=True)
    secret = install_manifests.brain_secret(given)
    secret["data"] = {"secret": SECRET, "database": "{{ .Values.brain.database | b64enc }}"}
    rest = (install_manifests.brain_service(given), install_manifests.brain_deployment(given))
    known = '{{- $known := lookup "v1" "Secret" .Release.Namespace "' + install_manifests.BRAIN + '" }}\n'
    return "{{- if .Values.brain.database }}\n" + known + template(secret, *rest) + "{{- end }}\n"


def operator() -> str:
    """The operator, which knows of the brain if there is one, and of the namespace that it is held to."""
    variants = {
        (with_brain, only): template(install_manifests.operator_deployment(plan(brain=with_brain, only=only)))
        for with_brain in (True, False)
        for only in (ONLY, "")
    }
    with_brain, alone = (branches("only", variants[each, ONLY], variants[each, ""]) for each in (True, False))
    return branches("brain.database", with_brain, alone)


def rights() -> str:
    """Objects of one namespace, or of the cluster."""
    held, free = (template(*install_manifests.operator_rights(plan(brain=False, only=only))) for only in (ONLY, ""))
    first = template(*install_manifests.user_roles(), install_manifests.account(plan(brain=False)))
    return first + branches("only", held, free)


def branches(value: str, given: str, missing: str) -> str:
    """One template of two texts: where they differ, the first if the value is given."""
    ours, others = given.splitlines(keepends=True), missing.splitlines(keepends=True)
    found = []
    for what, begin, end, other_begin, other_end in difflib.SequenceMatcher(None, ours, others, False).get_opcodes():
        some, rest = "".join(ours[begin:end]), "".join(others[other_begin:other_end])
        if what == "equal":
            found.append(some)
        elif not some:
            found.append(f"{{{{- if not .Values.{value} }}}}\n{rest}{{{{- end }}}}\n")
        else:
            otherwise = f"{{{{- else }}}}\n{rest}" if rest else ""
            found.append(f"{{{{- if .Values.{value} }}}}\n{some}{otherwise}{{{{- end }}}}\n")
    return "".join(found)


def files() -> dict[str, str]:
    """All files of the chart."""
    version = __version__.replace(".dev", "-dev.")
    chart = {
        "apiVersion": "v2",
        "name": "springtide",
        "type": "application",
        "version": version,
        "appVersion": __version__,
        "description": "Elastic training for recommendation models: operator and brain.",
        "kubeVersion": ">=1.25.0-0",
    }
    found = {
        "Chart.yaml": as_yaml([chart]).removeprefix("---\n"),
        "values.yaml": VALUES,
        "templates/rights.yaml": rights(),
        "templates/operator.yaml": operator(),
        "templates/brain.yaml": brain(),
    }
    for each in crds.all_definitions():
        found[f"crds/{each['spec']['names']['plural']}.yaml"] = as_yaml([each])
    return {name: text if name == "values.yaml" else NOTE + text for name, text in found.items()}


if __name__ == "__main__":
    for name, text in files().items():
        path = CHART / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
