"""Compiled code is kept between processes, so that only the first one of its kind waits for the compiler.

It lies where other caches of the user lie (`$XDG_CACHE_HOME/dsx`, by default `~/.cache/dsx`), unless the user has
told JAX of a folder. Without a folder that can be written to, every process compiles.
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
    # An entry that cannot be used is compiled again; nobody needs to know.
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
