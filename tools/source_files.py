"""Files of the tree for the checks: what git tracks, or, without git, what lies there."""

import pathlib
import subprocess

ROOT = pathlib.Path(__file__).resolve().parent.parent


def tracked(*suffixes):
    """Repository-relative paths with one of the suffixes, sorted."""
    try:
        out = subprocess.run(["git", "-C", str(ROOT), "ls-files", "--cached", "--others", "--exclude-standard"],
                             capture_output=True, text=True, check=True).stdout
        names = out.splitlines()
    except (OSError, subprocess.CalledProcessError):
        names = [str(p.relative_to(ROOT)) for p in ROOT.rglob("*") if not any(part.startswith("build") for part in p.parts)]
    return sorted(n for n in names if n.endswith(suffixes) and (ROOT / n).is_file())
