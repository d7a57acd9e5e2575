"""Keep compiled code between runs, so that only the first run of its kind waits for the compiler.

The code is in the user's cache folder (`$XDG_CACHE_HOME/dsx`, by default `~/.cache/dsx`), unless the user has given JAX
another folder. Without a writable folder, every run compiles.
"""

import os
import warnings
from pathlib import Path


def keep_compiled() -> None:
    """Keep on disk what is compiled, and use what earlier processes have kept there.

    The command line does so. In Python it is for you to say, since JAX then keeps what it compiles for others too: it
    lies in `~/.cache/dsx`, or where JAX was told.
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
    except (OSError, RuntimeError):  # a folder that cannot be made, or a user without a home
        return None
    return str(folder) if os.access(folder, os.W_OK) else None
