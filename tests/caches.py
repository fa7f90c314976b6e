"""A cache of Triton's, to be named by TRITON_CACHE_MANAGER."""

from triton.runtime.cache import FileCacheManager


class Elsewhere(FileCacheManager):
    """Keeps files as Triton's own does, which nobody can know of it."""
