"""Makes stub libraries with the symbols of an older glibc, to link with instead of this machine's own.

    python cmake/link_to_old_glibc.py FOLDER 2.28 [aarch64]

A library that is linked with this machine's glibc requires the newest versions of its symbols. So FOLDER gets stubs of
libc.so.6, libm.so.6 and others: libraries without code, which have this machine's symbols up to the given version. The
linker rejects a symbol that came later, except for those in `LATER`, which libjax_mgpu_glibc.a defines. For aarch64,
the cross compiler aarch64-linux-gnu-gcc makes the stubs from its own glibc.
"""

from __future__ import annotations

import pathlib
import re
import subprocess
import sys

LIBRARIES = {"libc.so.6": "libc.so", "libm.so.6": "libm.so"}
LOADERS = {"x86_64": "ld-linux-x86-64.so.2", "aarch64": "ld-linux-aarch64.so.1"}  # libloader.so
# Up to 2.33 these libraries had functions that are now in libc.so.6, so a library that uses threads must name them.
SEPARATE = {"libpthread.so.0": "libpthread.so", "libdl.so.2": "libdl.so", "librt.so.1": "librt.so"}
SYMBOL = re.compile(r"\s(\S+)\s+(?:GLOBAL|WEAK)\s+DEFAULT\s+(\S+)\s+([^\s@]+)@@?GLIBC_([\d.]+)$")
LATER = """
#include <sys/stat.h>
#include <stdlib.h>
#include <sys/random.h>
#define HIDDEN __attribute__((visibility("hidden")))
/* stat is a function since 2.33. Before, __xstat took the version of the structure. */
#ifdef __x86_64__
#define STRUCTURE 1
#else
#define STRUCTURE 0
#endif
extern int __xstat(int, const char*, struct stat*);
extern int __lxstat(int, const char*, struct stat*);
extern int __fxstat(int, int, struct stat*);
HIDDEN int stat(const char* path, struct stat* result) { return __xstat(STRUCTURE, path, result); }
HIDDEN int lstat(const char* path, struct stat* result) { return __lxstat(STRUCTURE, path, result); }
HIDDEN int fstat(int file, struct stat* result) { return __fxstat(STRUCTURE, file, result); }
HIDDEN int stat64(const char* path, struct stat* result) { return __xstat(STRUCTURE, path, result); }
HIDDEN int lstat64(const char* path, struct stat* result) { return __lxstat(STRUCTURE, path, result); }
HIDDEN int fstat64(int file, struct stat* result) { return __fxstat(STRUCTURE, file, result); }
/* Since 2.32: whether atomic operations can be left out. */
HIDDEN char __libc_single_threaded = 0;
/* Of libc_nonshared.a, which is left out. */
extern void* __dso_handle HIDDEN;
extern int __cxa_atexit(void (*)(void*), void*, void*);
HIDDEN int atexit(void (*function)(void)) { return __cxa_atexit((void (*)(void*))function, 0, __dso_handle); }
/* Since 2.36. */
HIDDEN unsigned arc4random(void) {
  unsigned number = 0;
  if (getrandom(&number, sizeof number, 0) != sizeof number) abort();
  return number;
}
/* Since 2.38 under these names for C23, whose numbers may be binary. */
#define KNOWN_BEFORE(type, name)                                            \\
  extern type before_##name(const char*, char**, int) __asm__(#name);       \\
  HIDDEN type __isoc23_##name(const char* text, char** end, int base) {     \\
    return before_##name(text, end, base);                                  \\
  }
KNOWN_BEFORE(long, strtol)
KNOWN_BEFORE(unsigned long, strtoul)
KNOWN_BEFORE(long long, strtoll)
KNOWN_BEFORE(unsigned long long, strtoull)
"""


def run(*command: str | pathlib.Path) -> str:
    """Returns what a command prints."""
    return subprocess.run(command, check=True, stdout=subprocess.PIPE, text=True).stdout


def number(version: str) -> tuple[int, ...]:
    """Returns a version as numbers, which can be compared."""
    return tuple(map(int, version.split(".")))


def symbols(library: str, newest: str) -> dict[str, tuple[str, str]]:
    """Returns the type of each symbol, by its name, and its newest version up to the given one."""
    found: dict[str, tuple[str, str]] = {}
    for line in run("readelf", "-W", "--dyn-syms", library).splitlines():
        if (match := SYMBOL.search(line)) is None or match[2] in ("UND", "ABS"):
            continue
        kind, _, name, version = match.groups()
        if number(version) <= number(newest) and (name not in found or number(version) > number(found[name][1])):
            found[name] = kind, version
    return found


def write_library(
    compiler: str, folder: pathlib.Path, soname: str, file: str, table: dict[str, tuple[str, str]]
) -> None:
    """Writes a library without code."""
    lines, types = [], {"OBJECT": "object", "TLS": "tls_object"}
    for name, (kind, version) in table.items():
        section = {"OBJECT": ".data", "TLS": '.section .tdata,"awT",@progbits'}.get(kind, ".text")
        lines += [
            section, f".globl stub_{name}", f".type stub_{name}, @{types.get(kind, 'function')}",
            f"stub_{name}: .quad 0", f".size stub_{name}, 8", f".symver stub_{name}, {name}@@GLIBC_{version}",
        ]  # fmt: skip
    versions = sorted({version for _, version in table.values()}, key=number)
    script = "".join(f"GLIBC_{version} {{ }};\n" for version in versions)
    source, map_file = folder / f"{soname}.s", folder / f"{soname}.map"
    source.write_text("\n".join([*lines, '.section .note.GNU-stack,"",@progbits', ""]))
    map_file.write_text(script or "{ local: *; };\n")
    options = ("-shared", "-nostdlib", f"-Wl,-soname,{soname},--version-script={map_file}")
    run(compiler, *options, source, "-o", folder / file)


def main() -> None:
    """Writes all libraries."""
    folder, newest, machine = pathlib.Path(sys.argv[1]), sys.argv[2], (sys.argv[3:] or ["x86_64"])[0]
    tools = "" if machine == "x86_64" else f"{machine}-linux-gnu-"
    compiler = f"{tools}gcc"
    folder.mkdir(parents=True, exist_ok=True)
    for soname, file in (LIBRARIES | {LOADERS[machine]: "libloader.so"}).items():
        path = run(compiler, f"-print-file-name={soname}").strip()
        write_library(compiler, folder, soname, file, symbols(path, newest))
    for soname, file in SEPARATE.items():
        write_library(compiler, folder, soname, file, {})
    source, compiled = folder / "later.c", folder / "later.o"
    source.write_text(LATER)
    run(compiler, "-O2", "-fPIC", "-c", source, "-o", compiled)
    archive = folder / "libjax_mgpu_glibc.a"
    archive.unlink(missing_ok=True)
    run(f"{tools}ar", "rcs", archive, compiled)


if __name__ == "__main__":
    main()
