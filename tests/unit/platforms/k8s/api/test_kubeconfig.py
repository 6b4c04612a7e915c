import asyncio
import base64
import pathlib
import sys

import pytest
import yaml

from springtide import errors
from springtide.platforms.k8s.api import kubeconfig

CONFIG = {
    "current-context": "here",
    "contexts": [
        {"name": "here", "context": {"cluster": "c", "user": "u", "namespace": "team"}},
        {"name": "there", "context": {"cluster": "d"}},
    ],
    "clusters": [
        {"name": "c", "cluster": {"server": "http://127.0.0.1:1/"}},
        {"name": "d", "cluster": {"server": "http://127.0.0.1:2", "proxy-url": "http://p", "tls-server-name": "n"}},
    ],
    "users": [{"name": "u", "user": {"token": "abc"}}],
}


def write_kubeconfig(folder, content, name="config"):
    path = pathlib.Path(folder) / name
    path.write_text(yaml.safe_dump(content))
    return path


def headers(reached):
    return asyncio.run(reached.headers())


def test_current_context_gives_server_namespace_and_token(tmp_path):
    reached = kubeconfig.find(str(write_kubeconfig(tmp_path, CONFIG)))
    assert (reached.server, reached.namespace) == ("http://127.0.0.1:1", "team")
    assert headers(reached) == {"Authorization": "Bearer abc"}


def test_named_context_is_used_and_needs_no_user(tmp_path):
    reached = kubeconfig.find(str(write_kubeconfig(tmp_path, CONFIG)), "there")
    assert (reached.server, reached.namespace) == ("http://127.0.0.1:2", "default")
    assert (reached.proxy, reached.server_name, headers(reached)) == ("http://p", "n", {})


def test_first_of_several_kubeconfigs_with_a_part_wins(tmp_path):
    one = write_kubeconfig(tmp_path, {"current-context": "here", "contexts": CONFIG["contexts"]}, "one")
    two = write_kubeconfig(tmp_path, CONFIG, "two")
    assert kubeconfig.find(f"{one}:{two}").server == "http://127.0.0.1:1"


def test_unknown_context_suggests_the_nearest(tmp_path):
    with pytest.raises(errors.UnknownName, match="Did you mean 'there'"):
        kubeconfig.find(str(write_kubeconfig(tmp_path, CONFIG)), "ther")


def test_missing_or_invalid_kubeconfig_is_a_user_error(tmp_path):
    with pytest.raises(errors.MissingFile, match="KUBECONFIG"):
        kubeconfig.find(str(tmp_path / "nothing"))
    (tmp_path / "text").write_text("just words")
    with pytest.raises(errors.BadInput, match="not a kubeconfig"):
        kubeconfig.find(str(tmp_path / "text"))


def test_pod_account_is_used_and_its_token_reread(tmp_path, monkeypatch):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("KUBERNETES_SERVICE_HOST", "fd00::1")
    monkeypatch.setenv("KUBERNETES_SERVICE_PORT", "6443")
    (tmp_path / "token").write_text("first\n")
    (tmp_path / "namespace").write_text("team\n")
    reached = kubeconfig.find(accounts=[str(tmp_path)])
    assert (reached.server, reached.namespace) == ("https://[fd00::1]:6443", "team")
    assert headers(reached)["Authorization"] == "Bearer first"
    (tmp_path / "token").write_text("second")
    assert headers(reached)["Authorization"] == "Bearer first"
    assert asyncio.run(reached.headers(anew=True))["Authorization"] == "Bearer second"


def test_missing_configuration_says_what_to_set(monkeypatch, tmp_path):
    monkeypatch.delenv("KUBECONFIG", raising=False)
    monkeypatch.setenv("HOME", str(tmp_path))
    with pytest.raises(errors.MissingFile, match="Set KUBECONFIG"):
        kubeconfig.find(accounts=[])


def test_exec_plugin_provides_the_token_or_its_error(tmp_path):
    says = 'import json; print(json.dumps({"status": {"token": "t", "expirationTimestamp": "2100-01-01T00:00:00Z"}}))'
    plain = {**CONFIG, "users": [{"name": "u", "user": {"exec": {"command": sys.executable, "args": ["-c", says]}}}]}
    reached = kubeconfig.find(str(write_kubeconfig(tmp_path, plain)))
    assert headers(reached)["Authorization"] == "Bearer t" and reached.until > 4e9
    fails = {"command": sys.executable, "args": ["-c", "import sys; sys.exit('not logged in')"]}
    plain["users"] = [{"name": "u", "user": {"exec": fails}}]
    with pytest.raises(errors.Forbidden, match="not logged in"):
        headers(kubeconfig.find(str(write_kubeconfig(tmp_path, plain))))


def test_certificates_are_read_inline_or_from_files(tmp_path):
    (tmp_path / "ca").write_text("of a file")
    part = {"certificate-authority": "ca"}
    assert kubeconfig.content(part, "certificate-authority", tmp_path) == b"of a file"
    part["certificate-authority-data"] = base64.b64encode(b"within").decode()
    assert kubeconfig.content(part, "certificate-authority", tmp_path) == b"within"
    assert kubeconfig.content({}, "certificate-authority", tmp_path) == b""
