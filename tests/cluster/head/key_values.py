"""A dictionary in place of Ray's own store."""

from collections.abc import Callable


class KeyValues(dict[bytes, bytes]):
    """`ray.experimental.internal_kv`. `then`: what is done after the next list of keys is made."""

    then: Callable[[], object] | None = None

    def _internal_kv_put(self, key: bytes, value: bytes, overwrite: bool, *, namespace: bytes) -> bool:
        """Whether there was one."""
        exists = key in self
        if overwrite or not exists:
            self[key] = value
        return exists

    def _internal_kv_get(self, key: bytes, *, namespace: bytes) -> bytes | None:
        return self.get(key)

    def _internal_kv_del(self, key: bytes, *, del_by_prefix: bool = False, namespace: bytes) -> None:
        for each in [each for each in self if each == key or (del_by_prefix and each.startswith(key))]:
            del self[each]

    def _internal_kv_list(self, prefix: bytes, *, namespace: bytes) -> list[bytes]:
        found = [key for key in self if key.startswith(prefix)]
        then, self.then = self.then, None
        if then is not None:
            then()
        return found
