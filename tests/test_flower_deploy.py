"""Deployment files: they can be parsed, refer to existing files, and use existing options of commands."""

import configparser
import re
import shlex
import sys
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import Any

import pytest
import yaml

import needs
from command import run_process
from feddle.flower.certificates import Certificates
from waiting import patient

ROOT = Path(__file__).parent.parent
DEPLOY = ROOT / "deploy"
UNITS = sorted((DEPLOY / "systemd").glob("*.service"))
BIN = Path(sys.executable).parent
pytestmark = patient


def compose() -> dict[str, Any]:
    read: dict[str, Any] = yaml.safe_load((DEPLOY / "compose.yaml").read_text())
    return read


def unit(path: Path) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)  # a key may occur twice
    parser.optionxform = str  # type: ignore[assignment, method-assign]
    parser.read_string(path.read_text().replace("\\\n", " "))
    return parser


def commands() -> Iterator[Any]:
    for path in UNITS:
        yield pytest.param(unit(path)["Service"]["ExecStart"].replace("/opt/feddle/bin/", ""), id=path.stem)
    for name, service in compose()["services"].items():
        yield pytest.param(service["command"], id=f"compose {name}")


@cache
def help_of(*command: str) -> set[str]:
    """The options in the help of a command."""
    done = run_process(BIN / command[0], *command[1:], "--help")
    assert done.code == 0, done.err
    return set(re.findall(r"(?<![\w-])--[a-z][a-z-]*", done.out))


@pytest.mark.parametrize("command", list(commands()))
def test_the_commands_have_every_option(command: str) -> None:
    arguments = shlex.split(command)
    own, _, passed_on = " ".join(arguments).partition(" -- ")
    name = own.split(" --")[0].split()
    assert name in (["flower-superlink"], ["flower-superexec"], ["feddle", "federation", "node"])
    options = set(re.findall(r"(?:^| )(--[a-z-]+)", own))
    assert options
    assert options <= help_of(*name)
    if passed_on:
        assert set(re.findall(r"(?:^| )(--[a-z-]+)", passed_on)) <= help_of("flower-supernode")


@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_units_restart_and_are_enabled(path: Path) -> None:
    read = unit(path)
    assert read["Service"]["Restart"] == "always"
    assert read["Install"]["WantedBy"]


@needs.systemd
@pytest.mark.parametrize("path", UNITS, ids=lambda path: path.stem)
def test_systemd_accepts_the_units(path: Path, tmp_path: Path) -> None:
    here = tmp_path / path.name
    here.write_text(path.read_text().replace("/opt/feddle/bin/", f"{BIN}/"))
    done = run_process("systemd-analyze", "verify", here)
    messages = [line for line in (done.out + done.err).splitlines() if path.name in line]
    assert messages == [], "unknown keys, commands that cannot be run"


def test_the_compose_file_refers_to_existing_files_and_secrets(tmp_path: Path) -> None:
    file = compose()
    made = {path.name for path in Certificates(tmp_path).make(["superlink"], 2)}
    assert {Path(secret["file"]).name for secret in file["secrets"].values()} <= made
    assert {str(Path(secret["file"]).parent) for secret in file["secrets"].values()} == {"certificates"}
    for service in file["services"].values():
        build = service["build"]
        assert (DEPLOY / build["context"] / build["dockerfile"]).is_file()
        used = set(re.findall(r"/run/secrets/([\w.-]+)", service["command"]))
        assert used == set(service["secrets"]) <= set(file["secrets"])
        assert {volume.split(":")[0] for volume in service["volumes"]} <= set(file["volumes"])
        assert set(service.get("depends_on", ())) <= set(file["services"])
        assert all(port.startswith("127.0.0.1:") for port in service["ports"]), (
            "anyone who can connect to the port can start runs"
        )


def test_the_image_copies_existing_files() -> None:
    copied = re.findall(r"^COPY (.*) \S+$", (DEPLOY / "Dockerfile").read_text(), re.MULTILINE)
    assert copied
    assert all((ROOT / name).exists() for names in copied for name in names.split())


@pytest.mark.parametrize("where", ["docs/flower.md", "deploy/compose.yaml"])
def test_mentioned_files_exist(where: str) -> None:
    text = (ROOT / where).read_text()
    named = set(re.findall(r"[\w-]+\.(?:conf|service)\b|compose\.yaml|Dockerfile", text))
    assert named
    assert named <= {path.name for path in DEPLOY.rglob("*")}


@needs.nginx
def test_nginx_accepts_its_configuration(tmp_path: Path) -> None:
    Certificates(tmp_path).make(["localhost"], 0)
    site = (DEPLOY / "nginx.conf").read_text().replace("/etc/feddle", str(tmp_path))
    (tmp_path / "site.conf").write_text(site)
    (tmp_path / "nginx.conf").write_text(
        f"pid {tmp_path}/pid; error_log stderr; events {{}} http {{ access_log off; include {tmp_path}/site.conf; }}"
    )
    command = ["nginx", "-t", "-p", str(tmp_path), "-c", str(tmp_path / "nginx.conf"), "-e", "stderr"]
    assert "test is successful" in run_process(*command).err
