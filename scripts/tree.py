"""The project's files, for the checks."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def project_files():
    """Paths from the root of all files that are or may become tracked; all files where there is no git."""
    listing = subprocess.run(["git", "ls-files", "-co", "--exclude-standard"], cwd=ROOT, capture_output=True, text=True)
    if listing.returncode == 0:
        paths = listing.stdout.splitlines()
    else:
        paths = [os.path.relpath(os.path.join(folder, name), ROOT)
                 for folder, _, names in os.walk(ROOT) for name in names]
    return sorted(path for path in set(paths)
                  if not path.startswith(("build/", ".git/", ".cache/")) and (ROOT / path).is_file())


def source_files():
    """Those in C++."""
    return [path for path in project_files() if path.endswith((".hpp", ".cpp", ".cu", ".cuh"))]
