"""The compiled CPU kernels; everything else about the package is in pyproject.toml."""

import os
import platform
from concurrent.futures import ThreadPoolExecutor

from setuptools import Extension, setup
from setuptools.command.bdist_wheel import bdist_wheel
from setuptools.command.build_ext import build_ext

FOLDER = "src/magna/ops/cpu/kernels"
SOURCES = [f"{FOLDER}/{name}.cpp" for name in ("diffusion", "edges", "nodes")]
DETECTION = f"{FOLDER}/isa.cpp"
HEADERS = [f"{FOLDER}/{name}.h" for name in ("api", "draw", "rows", "vectors")]
FLAGS = ["-std=c++17", "-O3", "-g0", "-fPIC", "-fopenmp", "-fvisibility=hidden", "-fno-exceptions", "-Wno-psabi"]
# None of these changes a result: branches may become selections, and loops are compiled once.
FLAGS += ["-fno-math-errno", "-fno-trapping-math", "-fno-unswitch-loops"]
ISAS: dict[str, list[str]] = {"baseline": []}
if platform.machine().lower() in ("x86_64", "amd64"):
    ISAS["avx2"] = ["-mavx2", "-mfma"]
    # The same vectors of 32 bytes, but twice the registers: the backward walk keeps all of its tile in them.
    ISAS["avx512"] = [*ISAS["avx2"], "-mavx512f", "-mavx512vl", "-mavx512dq", "-mavx512bw", "-mprefer-vector-width=256"]


class BuildKernels(build_ext):
    """Compiles the kernels once for each instruction set, into one plain library that ctypes loads."""

    def get_ext_filename(self, fullname):
        return os.path.join(*fullname.split(".")) + ".so"

    def build_extension(self, ext):
        def compiled(isa, source):
            return self.compiler.compile(
                [source],
                output_dir=os.path.join(self.build_temp, isa),
                macros=[("MAGNA_ISA", isa)] + [("MAGNA_X86", None)] * ("avx2" in ISAS),
                extra_postargs=FLAGS + ISAS[isa],
                depends=ext.depends,
            )

        jobs = [("baseline", DETECTION)] + [(isa, source) for source in ext.sources for isa in ISAS]
        with ThreadPoolExecutor(os.cpu_count()) as pool:
            objects = [path for paths in pool.map(lambda job: compiled(*job), jobs) for path in paths]
        path = self.get_ext_fullpath(ext.name)
        os.makedirs(os.path.dirname(path), exist_ok=True)
        self.compiler.link_shared_object(objects, path, extra_postargs=["-fopenmp"], target_lang="c++")


class Wheel(bdist_wheel):
    """A wheel for every Python 3 of a platform: ctypes loads the kernels, which need no ABI of Python."""

    def get_tag(self):
        return "py3", "none", super().get_tag()[2]


# Optional: where no compiler is found the package still installs, and the reference serves.
KERNELS = Extension("magna.ops.cpu.libmagna", SOURCES, depends=[DETECTION, *HEADERS], language="c++", optional=True)

setup(ext_modules=[KERNELS], cmdclass={"build_ext": BuildKernels, "bdist_wheel": Wheel})
