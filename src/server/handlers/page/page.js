"use strict";
// Requests this page again, a response that arrives when something has changed, and replaces the content.
(() => {
  const live = document.getElementById("live");
  const pause = (ms) => new Promise((done) => setTimeout(done, ms));
  const say = (text) => {
    if (live.textContent !== text) live.textContent = text;
  };
  // The page is hidden, or text is selected: keep the content.
  const busy = () => {
    const selection = getSelection();
    return document.hidden || (selection && !selection.isCollapsed);
  };

  const renew = async () => {
    const shown = document.querySelector("main");
    const url = new URL(location.href);
    url.hash = "";
    url.searchParams.set("after", shown.dataset.version);
    const answer = await fetch(url, { cache: "no-store" });
    const kind = answer.headers.get("content-type") || "";
    if (!kind.startsWith("text/html")) throw new Error(String(answer.status));
    const page = new DOMParser().parseFromString(await answer.text(), "text/html");
    const fresh = page.querySelector("main[data-version]");
    if (!fresh) throw new Error("no page");
    const focused = document.activeElement && document.activeElement.getAttribute("href");
    while (busy()) await pause(500);
    const fields = focused !== null && shown.contains(document.activeElement);
    shown.replaceWith(document.adoptNode(fresh));
    document.title = page.title;
    if (!fields) return;
    for (const link of fresh.querySelectorAll("a")) {
      if (link.getAttribute("href") === focused) link.focus({ preventScroll: true });
    }
  };

  const follow = async () => {
    let wait = 1000;
    for (;;) {
      try {
        while (busy()) await pause(500);
        say("Live");
        await renew();
        wait = 1000;
      } catch (error) {
        say("No answer; trying again");
        wait = Math.min(wait * 2, 15000);
      }
      await pause(wait);
    }
  };

  follow();
})();
