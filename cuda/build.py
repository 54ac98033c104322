#!/usr/bin/env python3
"""Compiles cuda/reduce.cu to cuda/reduce.ptx, which is checked in and embedded in the library.

    cuda/build.py           writes cuda/reduce.ptx
    cuda/build.py --check   compiles and compares; exits with 1 if the file is not what comes out

Needs no GPU and no CUDA toolkit: the compiler is NVRTC, of one pinned version, whose package pip
downloads into target/ and checks against the hashes in cuda/nvrtc.txt. What one version makes of one
source is the same to the byte every time.
"""

import ctypes
import pathlib
import subprocess
import sys
import tempfile
import zipfile

CUDA = pathlib.Path(__file__).resolve().parent
REQUIREMENTS = CUDA / "nvrtc.txt"
VERSION = REQUIREMENTS.read_text().split("==")[1].split()[0]
PACKAGE = CUDA.parent / "target" / f"nvrtc-{VERSION}"
OUTPUT = CUDA / "reduce.ptx"
OPTIONS = [
    # The oldest GPUs that round to bf16 themselves; the driver compiles for newer ones.
    "--gpu-architecture=compute_80",
    "--std=c++17",
    # The bits of the CPU's kernels: no product is fused into a sum, nothing is approximated, no
    # subnormal is flushed.
    "--fmad=false",
    "--ftz=false",
    "--prec-div=true",
    "--prec-sqrt=true",
]


def fail(reason):
    sys.exit(f"cuda/build.py: {reason}")


def download():
    """Fetches the package, whole or not at all."""
    PACKAGE.parent.mkdir(exist_ok=True)
    with tempfile.TemporaryDirectory(dir=PACKAGE.parent) as scratch:
        command = [sys.executable, "-m", "pip", "download", "--quiet", "--no-deps"]
        command += ["--require-hashes", "--only-binary=:all:", "--dest", scratch]
        if subprocess.run(command + ["--requirement", str(REQUIREMENTS)]).returncode != 0:
            fail("pip could not download the compiler named in cuda/nvrtc.txt; is there a network?")
        unpacked = pathlib.Path(scratch) / "unpacked"
        for wheel in pathlib.Path(scratch).glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                archive.extractall(unpacked)
        unpacked.rename(PACKAGE)


def compiler():
    """The NVRTC library, downloaded if it is not here yet."""
    if not PACKAGE.exists():
        download()
    library = PACKAGE / "nvidia" / "cuda_nvrtc" / "lib" / "libnvrtc.so.12"
    # It finds its second library only if that one is loaded already.
    for builtins in library.parent.glob("libnvrtc-builtins.so.*"):
        ctypes.CDLL(str(builtins), mode=ctypes.RTLD_GLOBAL)
    return ctypes.CDLL(str(library))


class Program:
    """One compilation."""

    def __init__(self, nvrtc, source, headers):
        self.nvrtc = nvrtc
        self.handle = ctypes.c_void_p()
        texts = [text.encode() for text in headers.values()]
        names = [name.encode() for name in headers]
        strings = ctypes.c_char_p * len(headers)
        self.call("nvrtcCreateProgram", ctypes.byref(self.handle), source.encode(), b"reduce.cu",
                  len(headers), strings(*texts), strings(*names))

    def call(self, function, *arguments):
        status = getattr(self.nvrtc, function)(*arguments)
        if status != 0:
            self.nvrtc.nvrtcGetErrorString.restype = ctypes.c_char_p
            reason = self.nvrtc.nvrtcGetErrorString(status).decode()
            if function == "nvrtcCompileProgram":
                reason += "\n" + self.text("ProgramLog")
            fail(f"{function}: {reason}")

    def text(self, what):
        size = ctypes.c_size_t()
        self.call(f"nvrtcGet{what}Size", self.handle, ctypes.byref(size))
        buffer = ctypes.create_string_buffer(size.value)
        self.call(f"nvrtcGet{what}", self.handle, buffer)
        return buffer.value.decode()

    def compile(self, options):
        encoded = [option.encode() for option in options]
        self.call("nvrtcCompileProgram", self.handle, len(encoded),
                  (ctypes.c_char_p * len(encoded))(*encoded))
        return self.text("PTX")


def main(arguments):
    if arguments not in ([], ["--check"]):
        print(__doc__, file=sys.stderr)
        return 2
    headers = {path.name: path.read_text() for path in sorted(CUDA.glob("*.cuh"))}
    source = (CUDA / "reduce.cu").read_text()
    ptx = Program(compiler(), source, headers).compile(OPTIONS)
    if not arguments:
        OUTPUT.write_text(ptx)
        print(f"wrote {OUTPUT}: {ptx.count('.entry')} kernels, {len(ptx)} bytes")
    elif not OUTPUT.exists() or OUTPUT.read_text() != ptx:
        fail("cuda/reduce.ptx is not what its source compiles to; run cuda/build.py")
    else:
        print("cuda/reduce.ptx is what its source compiles to")
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
