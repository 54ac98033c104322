"""Makes torch's package for GPUs importable without the libraries of a GPU. Only for tests.

For each missing shared library that torch's libraries need, this program builds a library with the
symbols that they use. Each symbol is a function that returns 100, the runtime's code for "no
device". Code that runs on the CPU never calls these functions. Needs gcc and readelf.
"""

import re
import subprocess
import sysconfig
import tempfile
from pathlib import Path

FOLDER = Path(sysconfig.get_path("purelib"), "torch", "lib")
# Symbols without a version, which may belong to any of these libraries. They are all defined in the
# stub of the CUDA runtime.
OF_GPUS = re.compile(r"(cu|nv|__cuda|nccl)")
HOME_OF_UNVERSIONED = "libcudart"


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def symbols(library):
    """Yields name, version (may be ''), is_defined and is_weak of each dynamic symbol."""
    for line in output("readelf", "-W", "--dyn-syms", library).splitlines():
        words = line.split()
        if len(words) >= 8 and words[0].rstrip(":").isdigit():
            name, _, version = words[7].partition("@")
            yield name, version.lstrip("@"), words[6] != "UND", words[4] == "WEAK"


def versions(library):
    """Returns the libraries from which `library` needs symbols, by version of the symbols."""
    owners, file = {}, None
    for line in output("readelf", "-W", "--version-info", library).splitlines():
        if found := re.search(r"File: (\S+)", line):
            file = found[1]
        if (found := re.search(r"Name: (\S+)\s+Flags", line)) and file:
            owners.setdefault(found[1], set()).add(file)
    return owners


def needed(library):
    return set(re.findall(r"NEEDED.*\[(.*)\]", output("readelf", "-W", "-d", library)))


def build(name, by_version, plain):
    """Builds a library of functions that all return 100."""
    every = sorted(set(plain).union(*by_version.values()))
    code = "".join(
        f".globl {one}\n.type {one},@function\n{one}: mov $100,%eax\n ret\n" for one in every
    )
    with tempfile.TemporaryDirectory() as folder:
        source, script = Path(folder, "stub.S"), Path(folder, "versions")
        source.write_text(f'.text\n{code}.section .note.GNU-stack,"",@progbits\n')
        script.write_text(
            "".join(
                f"{version} {{ global: {'; '.join(sorted(names))}; }};\n"
                for version, names in by_version.items()
            )
        )
        options = [f"-Wl,--version-script={script}"] if by_version else []
        output(
            "gcc",
            "-shared",
            "-nostdlib",
            f"-Wl,-soname,{name}",
            "-o",
            FOLDER / name,
            source,
            *options,
        )


def main():
    own = [file for file in FOLDER.glob("*.so*") if file.stat().st_size]
    known = output("/sbin/ldconfig", "-p")
    here = {file.name for file in own}
    wanted = set().union(*(needed(file) for file in own))
    missing = sorted(name for name in wanted - here if name not in known)
    asked = {name: {} for name in missing}
    defined, plain = set(), set()
    for file in own:
        owners = versions(file)
        for name, version, is_defined, is_weak in symbols(file):
            if is_defined:
                defined.add(name)
            elif not version and not is_weak and OF_GPUS.match(name):
                plain.add(name)
            for owner in owners.get(version, set()).intersection(missing) if not is_defined else ():
                asked[owner].setdefault(version, set()).add(name)
    versioned = set().union(*(names for one in asked.values() for names in one.values()))
    for name in missing:
        is_home = name.startswith(HOME_OF_UNVERSIONED)
        build(name, asked[name], plain - defined - versioned if is_home else ())
    print(f"built {len(missing)} stubs for libraries of a GPU")


main()
