"""Windows of a browser, and the lines that their pages put on the console."""

from __future__ import annotations

from typing import Any

from tests.waiting import PATIENCE_S, until

REFUSED_STATUS = "the server responded with a status of"
"""The line that Chromium itself reports for an answer that is an error."""
WATCH = """
addEventListener("securitypolicyviolation", (e) => console.error(`policy: ${e.violatedDirective}`))
"""


class Windows:
    """Opens windows, and collects the errors in them."""

    def __init__(self, browser: Any) -> None:
        self._browser = browser
        self._contexts: list[Any] = []
        self.troubles: list[str] = []
        self.requested_urls: list[str] = []
        """URLs of the requests of all windows."""
        self.expects_errors = False
        """True if a test makes the node answer with errors, which Chromium reports."""

    async def open(self, url: str, *, width: int = 1280, height: int = 900, **options: Any) -> Any:
        """Open a page. `options` are the options of a context: `color_scheme`, `reduced_motion`
        ..."""
        size = {"width": width, "height": height}
        context = await self._browser.new_context(viewport=size, **options)
        self._contexts.append(context)
        context.set_default_timeout(PATIENCE_S * 1000)
        page = await context.new_page()
        await page.add_init_script(WATCH)
        page.on("console", lambda message: self._on_console(message))
        page.on("pageerror", lambda error: self.troubles.append(f"error: {error}"))
        page.on("request", lambda request: self.requested_urls.append(request.url))
        await page.goto(url)
        return page

    def _on_console(self, message: Any) -> None:
        if not (self.expects_errors and REFUSED_STATUS in message.text):
            self.troubles.append(f"{message.type}: {message.text}")

    async def close(self) -> None:
        """Close every window; fail if any page has reported anything."""
        for context in self._contexts:
            await context.close()
        assert self.troubles == []


async def text_of(page: Any, place: str) -> str:
    """Return the visible text of an element."""
    return str(await page.locator(place).inner_text())


async def shows(page: Any, place: str, text: str) -> None:
    """Wait until an element shows a text."""

    async def seen() -> bool:
        element = page.locator(place)
        return await element.count() > 0 and text in " ".join(await element.all_inner_texts())

    await until(seen, f"{text!r} in {place}")


async def live(page: Any) -> None:
    """Wait until the page has its first answers."""
    await shows(page, "#link", "live")
    await until(lambda: page.evaluate("document.querySelector('.map')?.height > 20"), "a map")
