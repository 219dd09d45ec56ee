"""`make release`: wheel, source distribution, bill of materials, checksums, and a signature by a throw-away key."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

import godwit

ROOT = Path(__file__).resolve().parent.parent
LOCK = ROOT / "requirements" / "runtime.lock"
HAS_TOOLS = all(map(shutil.which, ("make", "ssh-keygen", "sha256sum"))) and (ROOT / ".venv" / ".installed").exists()
needs_tools = pytest.mark.skipif(not HAS_TOOLS, reason="needs make setup, GNU make, OpenSSH and coreutils")


def run_make(*arguments: str) -> subprocess.CompletedProcess[str]:
    # The environment that runs this test is not to be made anew: -o treats its stamp as old.
    command = ["make", "-o", ".venv/.installed", *arguments]
    environment = {**os.environ, "GODWIT_CORE": "interpreted"}
    return subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, check=False, timeout=600)


@needs_tools
def test_a_signed_release(tmp_path: Path) -> None:
    key, folder = tmp_path / "key", tmp_path / "dist"
    subprocess.run(["ssh-keygen", "-q", "-t", "ed25519", "-N", "", "-f", str(key)], check=True)
    made = run_make("release", f"SIGNING_KEY={key}", f"DIST={folder}")
    assert made.returncode == 0, made.stdout + made.stderr
    names = {path.name for path in folder.iterdir()}
    version = godwit.__version__
    bill = f"godwit_mq-{version}.cdx.json"
    assert {bill, f"godwit_mq-{version}.tar.gz", "SHA256SUMS", "SHA256SUMS.sig"} <= names
    assert any(name.endswith(".whl") for name in names)
    check_signature(folder, key)
    check_bill(json.loads((folder / bill).read_text()))
    (folder / bill).write_text("{}")
    assert subprocess.run(["sha256sum", "--check", "--status", "SHA256SUMS"], cwd=folder, check=False).returncode == 1


def check_signature(folder: Path, key: Path) -> None:
    """Check it as in RELEASING.md, and that another file or another namespace does not pass."""
    public = key.with_suffix(".pub").read_text()
    signers = folder.parent / "allowed_signers"
    signers.write_text(f'releases@godwit namespaces="godwit-release" {public}')
    sums = (folder / "SHA256SUMS").read_bytes()

    def verify(data: bytes, namespace: str = "godwit-release") -> bool:
        command = ["ssh-keygen", "-Y", "verify", "-f", str(signers), "-I", "releases@godwit", "-n", namespace]
        command += ["-s", str(folder / "SHA256SUMS.sig")]
        return subprocess.run(command, input=data, capture_output=True, check=False).returncode == 0

    assert verify(sums)
    assert not verify(sums + b"x")
    assert not verify(sums, "git")
    assert subprocess.run(["sha256sum", "--check", "--status", "SHA256SUMS"], cwd=folder, check=False).returncode == 0


def check_bill(bill: dict[str, object]) -> None:
    """The bill lists the product, and each package of the lock with its version and hashes."""
    assert bill["bomFormat"] == "CycloneDX"
    assert "serialNumber" not in bill, "two runs give the same bytes"
    metadata, components = bill["metadata"], bill["components"]
    assert isinstance(metadata, dict)
    assert isinstance(components, list)
    assert metadata["component"]["name"] == "godwit-mq"
    found = {(one["name"].lower(), one["version"]) for one in components}
    locked = set(re.findall(r"^([\w.-]+)(?:\[[\w,-]+\])?==([\w.]+)", LOCK.read_text(), re.MULTILINE))
    assert found == {(name.lower(), version) for name, version in locked}
    assert all("sha256" in json.dumps(one).lower() or "SHA-256" in json.dumps(one) for one in components)


@needs_tools
def test_a_release_without_a_key_is_refused() -> None:
    for arguments in ((), ("SIGNING_KEY=/nonexistent/key",)):
        refused = run_make("release", *arguments)
        assert refused.returncode != 0
        assert "name the key that signs the release" in refused.stderr


def test_the_locks_agree() -> None:
    """Users get the packages with which the tests ran."""
    pattern = re.compile(r"^([\w.-]+)(?:\[[\w,-]+\])?==([\w.]+)(?: ; (.*?))? \\", re.MULTILINE)
    dev, java, runtime = (
        set(pattern.findall((ROOT / "requirements" / f"{name}.lock").read_text()))
        for name in ("dev", "java", "runtime")
    )
    assert {(name, version) for name, version, _ in runtime} <= {(name, version) for name, version, _ in dev | java}
