"""Keep compiled code between runs, so that later runs need not compile it again.

The code is in the user's cache folder (`$XDG_CACHE_HOME/dsx`, by default `~/.cache/dsx`), unless the user has given JAX
another folder. Without a writable folder, every run compiles.
"""

import os
import warnings
from pathlib import Path


def keep_compiled() -> None:
    """Keep compiled code on disk, and use the code that earlier processes kept.

    The command line does this by default. Python code has to ask for it, since it changes JAX's settings for the whole
    process. The folder is `~/.cache/dsx/compiled`, or that of JAX_COMPILATION_CACHE_DIR.
    """
    import jax

    folder = os.environ.get("JAX_COMPILATION_CACHE_DIR") or _folder()
    if folder is None:
        return
    # An entry that cannot be used is compiled again, without a warning.
    warnings.filterwarnings("ignore", message="Error (reading|writing) persistent compilation cache entry")
    jax.config.update("jax_compilation_cache_dir", folder)
    jax.config.update("jax_persistent_cache_min_compile_time_secs", 0.0)
    jax.config.update("jax_persistent_cache_min_entry_size_bytes", 0)


def _folder() -> str | None:
    try:
        folder = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsx" / "compiled"
        folder.mkdir(parents=True, exist_ok=True)
    except (OSError, RuntimeError):  # no permission to make the folder, or no home folder
        return None
    return str(folder) if os.access(folder, os.W_OK) else None
