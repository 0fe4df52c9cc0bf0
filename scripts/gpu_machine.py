"""What the machine with the GPU has, and the environment in which packed programs find it."""
import pathlib
import shutil
import subprocess

from gpu_checks import python

LOAD = "import ctypes, sys; library = ctypes.CDLL(sys.argv[1]); "
ASK_NCCL = LOAD + "version = ctypes.c_int(); library.ncclGetVersion(ctypes.byref(version)); print(version.value)"
ASK_PATH = LOAD + ("print(next(line.split(None, 5)[5].strip() for line in open('/proc/self/maps')"
                   " if sys.argv[1] in line))")
# Where drivers are that the loader is told of by nobody.
DRIVER_FOLDERS = ("/usr/local/nvidia/lib64", "/usr/lib/x86_64-linux-gnu", "/usr/lib64", "/usr/lib/wsl/lib",
                  "/usr/local/cuda/compat")
CUBLAS_VERSIONS = (13, 12)


def append_path(environment, name, folder):
    environment[name] = ":".join(filter(None, [environment.get(name), str(folder)]))


def wheels(environment):
    """Folders, each with lib, of NVIDIA's wheels, which PyTorch brings."""
    places = python(environment, "import nvidia; print(*nvidia.__path__, sep='\\n')") or ""
    return [folder for place in places.splitlines() for folder in sorted(pathlib.Path(place).iterdir())]


def find_driver(environment, folders=DRIVER_FOLDERS):
    """The driver's library, and its folder in LD_LIBRARY_PATH: the packed loader knows Debian's folders only."""
    name = "libcuda.so.1"
    found = [python(environment, ASK_PATH, name), *(f"{folder}/{name}" for folder in folders)]
    for library in filter(None, found):
        if pathlib.Path(library).exists():
            append_path(environment, "LD_LIBRARY_PATH", pathlib.Path(library).parent)
            return library
    return None


def find_nccl(environment, folders, name="libnccl.so.2"):
    """Which NCCL is used, for the head of the table: the given one, else the wheels', else the loader's."""
    chosen = environment.get("TROUPE_NCCL_LIBRARY")
    candidates = [(chosen, "TROUPE_NCCL_LIBRARY's")] if chosen else []
    candidates += [(str(folder / "lib" / name), "PyTorch's") for folder in folders] + [(name, "the loader's")]
    for library, whose in candidates:
        version = int(python(environment, ASK_NCCL, library) or 0)
        if version:
            if whose == "PyTorch's":
                environment["TROUPE_NCCL_LIBRARY"] = library
            return f"NCCL {version // 10000}.{version // 100 % 100}.{version % 100} ({whose})"
    return None


def find_cublas(environment, folders, versions=CUBLAS_VERSIONS):
    """Its name, or None. A folder in which the loader does not look by itself, it is told of."""
    for version in versions:
        name = f"libcublas.so.{version}"
        for place in (*(folder / "lib" for folder in folders), "/usr/local/cuda/lib64", None):
            trial = dict(environment)
            if place is not None:
                append_path(trial, "LD_LIBRARY_PATH", place)
            if python(trial, LOAD, name) is not None:
                environment.update(trial)
                return name
    return None


def gpus(environment):
    """Names and driver, for the head of the table."""
    tool = shutil.which("nvidia-smi")
    if tool is None:
        return []
    text = subprocess.run([tool, "--query-gpu=name,driver_version", "--format=csv,noheader"], stdout=subprocess.PIPE,
                          universal_newlines=True, check=False, env=environment).stdout
    return [line.strip() for line in text.splitlines() if line.strip()]


def sanitizer(environment):
    path = f"{environment.get('PATH', '')}:/usr/local/cuda/bin:/usr/local/cuda/compute-sanitizer"
    return shutil.which("compute-sanitizer", path=path)


class Machine:
    def __init__(self, environment):
        self.environment = environment
        folders = wheels(environment)
        self.driver = find_driver(environment)
        self.cublas = find_cublas(environment, folders)
        self.nccl = find_nccl(environment, folders)
        self.gpus = gpus(environment)
        self.torch = python(environment, "from importlib import metadata; print(metadata.version('torch'))")
        self.transformers = python(environment, "import transformers; print(transformers.__version__)")
        self.sanitizer = sanitizer(environment)

    def text(self):
        parts = ["; ".join(self.gpus) or "no GPU", self.nccl or "no NCCL", self.cublas or "no cuBLAS"]
        return ", ".join(parts + [f"PyTorch {self.torch}" if self.torch else "no PyTorch"])
