"use strict";
// Each figure holds its picture as SVG. Where it comes into sight the same chart is drawn live: a tooltip at each mark.
(async () => {
  // A data block is gzip in base64. The policy of the page names the hash of what the first one unpacks to.
  const unpack = async (id) => {
    const bytes = Uint8Array.from(atob(document.getElementById(id).textContent), (sign) => sign.charCodeAt(0));
    const unzipped = new Blob([bytes]).stream().pipeThrough(new DecompressionStream("gzip"));
    return new Response(unzipped).text();
  };
  const vega = document.createElement("script");
  vega.textContent = await unpack("packed-vega");
  document.head.append(vega);
  const specs = JSON.parse(await unpack("packed-specs"));
  const tip = document.getElementById("tip");

  const hide = () => { tip.hidden = true; };
  const show = (handler, event, item, value) => {
    if (typeof value !== "string" || value === "") { hide(); return; }
    tip.textContent = value;
    tip.hidden = false;
    const left = Math.min(event.clientX + 14, document.documentElement.clientWidth - tip.offsetWidth - 8);
    const below = event.clientY + 18;
    const fits = below + tip.offsetHeight < document.documentElement.clientHeight;
    tip.style.left = `${Math.max(8, left)}px`;
    tip.style.top = `${fits ? below : event.clientY - tip.offsetHeight - 10}px`;
  };

  const draw = async (box) => {
    const picture = box.querySelector("svg");
    const stage = document.createElement("div");
    stage.hidden = true;
    box.append(stage);
    try {
      await vegaEmbed(stage, specs[box.dataset.spec], {
        mode: "vega-lite", renderer: "svg", actions: false, defaultStyle: false, tooltip: show,
      });
      const live = stage.querySelector("svg");
      live.setAttribute("role", "img");
      live.setAttribute("aria-label", picture.getAttribute("aria-label"));
      picture.remove();
      stage.hidden = false;
      box.dataset.live = "yes";
    } catch (problem) {
      stage.remove();
      console.error(problem);
    }
  };

  const seen = new IntersectionObserver((entries) => {
    for (const entry of entries) {
      if (entry.isIntersecting) {
        seen.unobserve(entry.target);
        draw(entry.target);
      }
    }
  }, { rootMargin: "300px" });
  for (const box of document.querySelectorAll("[data-spec]")) seen.observe(box);
  addEventListener("scroll", hide, { passive: true });
  addEventListener("keydown", (event) => { if (event.key === "Escape") hide(); });
})();
