"""Takes from a process, and from all that it starts, what running functions does not need.

This is the second wall: the first is that the interpreter has no way out. It stands where the first one has
a hole. Limits hold everywhere; the filter of system calls (seccomp, in the kernel's classic BPF) where Linux
runs on a processor whose numbers are known here. What the filter refuses comes back as EPERM.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from typing import Final

OPEN_FILES: Final = 128
ROOM_BYTES: Final = 512 << 20
"""What the processes take by themselves."""

_NO_NEW_PRIVS: Final = 38
_SECCOMP: Final = 22
_FILTER: Final = 2
_LOAD: Final = 0x20
_JUMP_IF_EQUAL: Final = 0x15
_JUMP_IF_AT_LEAST: Final = 0x35
_JUMP_IF_ANY: Final = 0x45
_RETURN: Final = 0x06
_ALLOW: Final = 0x7FFF0000
_REFUSE: Final = 0x00050001
"""An error, EPERM."""
_ARCH_AT: Final = 4
_FIRST_ARGUMENT_AT: Final = 16
_X32: Final = 0x40000000
_WITHOUT_FILTERS: Final = frozenset({errno.EINVAL, errno.ENOSYS, errno.EPERM, errno.EACCES})
_MAKES_FILES: Final = os.O_CREAT | os.O_TRUNC

_ARCHES: Final = {"x86_64": 0xC000003E, "aarch64": 0xC00000B7}
_CALLS: Final[dict[str, dict[str, int]]] = {
    "x86_64": {
        "socket": 41,
        "ptrace": 101,
        "process_vm_readv": 310,
        "process_vm_writev": 311,
        "mount": 165,
        "umount2": 166,
        "chroot": 161,
        "pivot_root": 155,
        "unshare": 272,
        "setns": 308,
        "bpf": 321,
        "perf_event_open": 298,
        "keyctl": 250,
        "add_key": 248,
        "request_key": 249,
        "init_module": 175,
        "finit_module": 313,
        "delete_module": 176,
        "kexec_load": 246,
        "reboot": 169,
        "io_uring_setup": 425,
        "userfaultfd": 323,
        "open_by_handle_at": 304,
        "openat2": 437,
        "creat": 85,
        "unlink": 87,
        "unlinkat": 263,
        "rename": 82,
        "renameat": 264,
        "renameat2": 316,
        "rmdir": 84,
        "mkdir": 83,
        "mkdirat": 258,
        "link": 86,
        "linkat": 265,
        "symlink": 88,
        "symlinkat": 266,
        "chmod": 90,
        "fchmod": 91,
        "fchmodat": 268,
        "chown": 92,
        "fchown": 93,
        "lchown": 94,
        "fchownat": 260,
        "truncate": 76,
        "ftruncate": 77,
        "mknod": 133,
        "mknodat": 259,
    },
    "aarch64": {
        "socket": 198,
        "ptrace": 117,
        "process_vm_readv": 270,
        "process_vm_writev": 271,
        "mount": 40,
        "umount2": 39,
        "chroot": 51,
        "pivot_root": 41,
        "unshare": 97,
        "setns": 268,
        "bpf": 280,
        "perf_event_open": 241,
        "keyctl": 219,
        "add_key": 217,
        "request_key": 218,
        "init_module": 105,
        "finit_module": 273,
        "delete_module": 106,
        "kexec_load": 104,
        "reboot": 142,
        "io_uring_setup": 425,
        "userfaultfd": 282,
        "open_by_handle_at": 265,
        "openat2": 437,
        "unlinkat": 35,
        "renameat": 38,
        "renameat2": 276,
        "mkdirat": 34,
        "linkat": 37,
        "symlinkat": 36,
        "fchmod": 52,
        "fchmodat": 53,
        "fchown": 55,
        "fchownat": 54,
        "truncate": 45,
        "ftruncate": 46,
        "mknodat": 33,
    },
}
"""Sockets, other processes, the machine's set-up, and files that are made, changed or removed."""
_OPENS: Final = {"x86_64": ((2, 1), (257, 2)), "aarch64": ((56, 2),)}
"""`open` and `openat`, each with the place of its flags: they may read files, which the programs need."""


def confine(memory_bytes: int) -> None:
    """Confines this process, before it has threads.

    Args:
        memory_bytes: the most a function may take; there is room for it in two processes.
    """
    for limit, most in (
        (resource.RLIMIT_FSIZE, 0),
        (resource.RLIMIT_CORE, 0),
        (resource.RLIMIT_NOFILE, OPEN_FILES),
        (resource.RLIMIT_DATA, 2 * memory_bytes + ROOM_BYTES),
    ):
        _, hard = resource.getrlimit(limit)
        allowed = most if hard == resource.RLIM_INFINITY else min(most, hard)
        resource.setrlimit(limit, (allowed, allowed))
    if platform.system() == "Linux" and platform.machine() in _ARCHES:
        _filter(_program(platform.machine()))


def _program(machine: str) -> list[bytes]:
    """The filter: another architecture's calls are refused whole, for their numbers mean something else."""
    program = [
        _step(_LOAD, _ARCH_AT),
        _step(_JUMP_IF_EQUAL, _ARCHES[machine], 1, 0),
        _step(_RETURN, _REFUSE),
        _step(_LOAD, 0),
        _step(_JUMP_IF_AT_LEAST, _X32, 0, 1),
        _step(_RETURN, _REFUSE),
    ]
    for number in _CALLS[machine].values():
        program += [_step(_JUMP_IF_EQUAL, number, 0, 1), _step(_RETURN, _REFUSE)]
    for number, place in _OPENS[machine]:
        program += [
            _step(_JUMP_IF_EQUAL, number, 0, 4),
            _step(_LOAD, _FIRST_ARGUMENT_AT + 8 * place),
            _step(_JUMP_IF_ANY, _MAKES_FILES, 0, 1),
            _step(_RETURN, _REFUSE),
            _step(_RETURN, _ALLOW),
        ]
    return [*program, _step(_RETURN, _ALLOW)]


def _step(code: int, value: int, if_true: int = 0, if_false: int = 0) -> bytes:
    return struct.pack("HBBI", code, if_true, if_false, value)


def _filter(program: list[bytes]) -> None:
    """Has the kernel apply a filter to this thread, and to all that come of it."""
    steps = ctypes.create_string_buffer(b"".join(program))
    header = ctypes.create_string_buffer(struct.pack("HP", len(program), ctypes.addressof(steps)))
    libc = ctypes.CDLL(None, use_errno=True)
    if libc.prctl(_NO_NEW_PRIVS, 1, 0, 0, 0) or libc.prctl(_SECCOMP, _FILTER, header, 0, 0):
        # A kernel built without it, or a container that forbids it: the first wall and the limits stand.
        error = ctypes.get_errno()
        if error not in _WITHOUT_FILTERS:
            raise OSError(error, os.strerror(error))
