"""Pages of a node that exists only in a test, made of the declarations of the product."""

from __future__ import annotations

from typing import Any

from shardbus.admin.page_table import PAGES
from shardbus.http.page import AnyPage, Check, Checks, Json, NodePages
from tests.records import replace


class PageDouble:
    """A node whose pages are the methods of their names; `answer` is the page of the others, with
    the values of the parameters in their order."""

    ready = True

    async def answer(self, page: str, *values: object) -> Json:
        return {"asked": [page, *values]}

    async def livez(self) -> Checks:
        return {"loop": Check(True, "lag 1 ms")}

    async def readyz(self) -> Checks:
        return {"member": Check(True, "up"), "coordinators": Check(self.ready, "counter: none")}

    async def startupz(self) -> Checks:
        return await self.readyz()

    @property
    def pages(self) -> NodePages:
        return {page.name: replace(page, answer=self._page(page)) for page in PAGES}

    def _page(self, page: AnyPage) -> Any:
        async def other(**values: object) -> Json:
            return await self.answer(
                page.name, *(values[parameter.name] for parameter in page.parameters)
            )

        return getattr(self, page.name, other)
