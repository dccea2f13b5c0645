from typing import ClassVar

import pytest
from dressage_store import FilesStore, MemoryStore
from dressage_store.contract import StoreContract


class TestMemoryStore(StoreContract):
    def make_store(self):
        return MemoryStore()


class TestFilesStore(StoreContract):
    options: ClassVar[dict[str, object]] = {}

    @pytest.fixture(autouse=True)
    def _folder(self, tmp_path):
        self.root = tmp_path / "store"

    def make_store(self):
        return FilesStore(self.root, **self.options)

    def reopen(self, store):
        store.close()
        return FilesStore(self.root, **self.options)


class TestFilesStoreThatRetains(TestFilesStore):
    options: ClassVar = {"retain": True}


class TestFilesStoreThatSyncs(TestFilesStore):
    options: ClassVar = {"fsync": True}


class TestFilesStoreWithOneDescriptor(TestFilesStore):
    options: ClassVar = {"max_open_files": 1}
