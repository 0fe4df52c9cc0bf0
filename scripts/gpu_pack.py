"""Programs and tests for a GPU, packed so that they run on any x86-64 Linux with a driver and a Python.

DIR/programs.tar.xz has bin/, lib/ with every library they need, the loader and C library included, tests/ with what
tests read, and manifest.json; DIR/scripts are what runs it. The programs name a loader of a placeholder's path, since
a loader's path is absolute: unpacking writes the path of the packed one there.
"""
import datetime
import json
import os
import pathlib
import re
import shutil
import subprocess
import sys
import tarfile

from gpu_checks import ROOT

ARCHIVE = "programs.tar.xz"
MOST_BYTES = 50_000_000
LOADER = "ld-linux-x86-64.so.2"
PLACEHOLDER = ("/" + "troupe-loader/" * 16)[:200]
# What a program is called, and the target that makes it: for a GPU, and over the emulated runtime (tests/rehearsal).
TARGETS = {"troupe": "troupe", "troupe-gpt": "gpt", "gpu_tests": "gpu_tests",
           "apps_gpt_gpu_tests": "apps_gpt_gpu_tests"}
EMULATED = {"troupe": "rehearsal_troupe", "troupe-gpt": "rehearsal_gpt", "gpu_tests": "rehearsal_gpu_tests",
            "apps_gpt_gpu_tests": "apps_gpt_cuda_tests"}
EMULATED_NCCL = "libnccl_emulated.so"
# What drivers, NCCL and cuBLAS may ask for besides what programs do; those of another C library would not do.
ALSO = ("libdl.so.2", "libpthread.so.0", "librt.so.1", "libutil.so.1", "libresolv.so.2", "libanl.so.1", "libm.so.6",
        "libgcc_s.so.1", "libstdc++.so.6")
LIBRARY = "libtroupe.so.0"  # for Python, in native/ with what it loads; PYTHON uses it
NOT_BESIDE_PYTHON = {"libc.so.6", "ld-linux-x86-64.so.2", *ALSO}  # the process has them
PYTHON = ("python/src/troupe", "tests/python/ranks.py", "tests/python/models.py", "tests/python/torch_gpu_test.py",
          "scripts/peers/torch_gpu_steps.py")
SCRIPTS = ("gpu_check", "gpu_checks.py", "gpu_machine.py", "gpu_rows.py", "gpu_benchmarks.py", "gpu_pack.py",
           "peers/torch_gpt.py")


def build(folder, architectures, targets):
    flags = f"-Wl,--dynamic-linker={PLACEHOLDER},--disable-new-dtags,-rpath,'$ORIGIN/../lib'"
    of_library = "-Wl,--disable-new-dtags,-rpath,'$ORIGIN'"
    configure = ["cmake", "-S", ROOT, "-B", folder, "-G", "Ninja", "-DCMAKE_BUILD_TYPE=Release",
                 "-DTROUPE_CUDA=ON", "-DTROUPE_BUILD_BENCHMARKS=OFF", f"-DCMAKE_EXE_LINKER_FLAGS={flags}",
                 f"-DCMAKE_SHARED_LINKER_FLAGS={of_library}", "--log-level=WARNING"]
    configure += [f"-DCMAKE_CUDA_ARCHITECTURES={architectures}"] if architectures else []
    # From nothing it is quicker, as in scripts/build.
    configure += [] if (folder / "CMakeCache.txt").exists() else ["-DTROUPE_JOIN_SOURCES=ON"]
    subprocess.run([str(word) for word in configure], check=True)
    subprocess.run(["cmake", "--build", str(folder), "--target", *targets], check=True)


def libraries_of(program):
    """By name, where the loader of this machine finds them."""
    listed = subprocess.run(["/lib64/" + LOADER, "--list", program], stdout=subprocess.PIPE, universal_newlines=True, check=True).stdout
    found = dict(re.findall(r"^\s*(\S+) => (/\S+)", listed, re.MULTILINE))
    missing = re.findall(r"(\S+) => not found", listed)
    if missing:
        sys.exit(f"gpu_check: {program} needs {', '.join(missing)}, which this machine's loader does not find")
    return {name: path for name, path in found.items() if "/" not in name}  # but the loader, which has a path


def copy_programs(folder, root, emulated):
    (root / "bin").mkdir(parents=True)
    (root / "lib").mkdir()
    places = {}
    for name in TARGETS:
        program = root / "bin" / name
        shutil.copy(folder / "bin" / (EMULATED[name] if emulated else name), program)
        places.update(libraries_of(program))
        subprocess.run(["strip", "--strip-all", program], check=True)
    if emulated:
        places[EMULATED_NCCL] = str(folder / "bin" / EMULATED_NCCL)
        places.update(libraries_of(places[EMULATED_NCCL]))
    system = pathlib.Path(places["libc.so.6"]).parent
    for name in ALSO:
        places.setdefault(name, str(system / name))
    places[LOADER] = str(system / LOADER)
    for name, path in places.items():
        shutil.copy(path, root / "lib" / name)  # what links lead to
    for library in (root / "lib").iterdir():
        subprocess.run(["strip", "--strip-unneeded", library], check=True)


def copy_python(folder, root):
    """What a Python with PyTorch runs."""
    native = root / "native"
    native.mkdir()
    shutil.copy(folder / "lib" / LIBRARY, native / LIBRARY)
    subprocess.run(["strip", "--strip-unneeded", native / LIBRARY], check=True)
    for name, path in libraries_of(folder / "lib" / LIBRARY).items():
        if name not in NOT_BESIDE_PYTHON:
            if not (root / "lib" / name).exists():
                shutil.copy(path, root / "lib" / name)
            (native / name).symlink_to(pathlib.Path("../lib") / name)
    for name in PYTHON:
        copy = shutil.copytree if (ROOT / name).is_dir() else shutil.copy
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        copy(ROOT / name, root / name)


def commit():
    def git(*arguments):
        return subprocess.run(["git", "-C", ROOT, *arguments], stdout=subprocess.PIPE, stderr=subprocess.DEVNULL,
                              universal_newlines=True, check=False).stdout.strip()
    return (git("rev-parse", "--short", "HEAD") or "unknown") + (" and changes" if git("status", "--porcelain") else "")


def pack(target, folder, architectures, emulated=False):
    build(folder, architectures,
          [*EMULATED.values(), "rehearsal_nccl"] if emulated else [*TARGETS.values(), "troupe_shared"])
    root = folder / "pack"
    shutil.rmtree(root, ignore_errors=True)
    copy_programs(folder, root, emulated)
    if not emulated:
        copy_python(folder, root)
    shutil.copytree(ROOT / "tests/golden/optimizers", root / "tests/golden/optimizers")
    (root / "text.txt").write_text("".join(path.read_text() for path in sorted((ROOT / "docs").glob("*.md"))))
    manifest = {"commit": commit(), "date": datetime.date.today().isoformat(), "emulated": emulated}
    (root / "manifest.json").write_text(json.dumps(manifest) + "\n")
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    subprocess.run(["tar", "-C", root, "-I", "xz -T0 -6", "-cf", target / ARCHIVE, "."], check=True)
    for script in SCRIPTS:
        (target / "scripts" / script).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(ROOT / "scripts" / script, target / "scripts" / script)
    size = sum(path.stat().st_size for path in target.rglob("*") if path.is_file())
    print(f"gpu_check: {size / 1e6:.1f} MB in {target}: there, run python3 {target.name}/scripts/gpu_check "
          f"--packed {target.name} --out FOLDER")
    if size > MOST_BYTES:
        sys.exit(f"gpu_check: expected at most {MOST_BYTES / 1e6:.0f} MB, so that the pack can be carried")


def unpack(source, root):
    """The manifest, after programs are there that start from where they lie."""
    archive = source / ARCHIVE
    if not archive.is_file():
        sys.exit(f"gpu_check: expected {ARCHIVE} in {source}; make it with scripts/gpu_check --pack {source}")
    shutil.rmtree(root, ignore_errors=True)
    root.mkdir(parents=True)
    try:
        with tarfile.open(archive) as tar:
            tar.extractall(root)
    except (tarfile.TarError, EOFError, OSError) as error:
        sys.exit(f"gpu_check: {archive} is damaged ({error}); copy it here again")
    loader = os.fsencode((root / "lib" / LOADER).resolve())
    if len(loader) > len(PLACEHOLDER):
        sys.exit(f"gpu_check: the path {root} is too long: choose one of at most 150 bytes with --work")
    for program in (root / "bin").iterdir():
        data = program.read_bytes().replace(PLACEHOLDER.encode(), loader.ljust(len(PLACEHOLDER), b"\0"), 1)
        program.write_bytes(data)
        program.chmod(0o755)
    (root / "lib" / LOADER).chmod(0o755)
    return json.loads((root / "manifest.json").read_text())
