"""What a report's page looks like, and the few lines of script that sort its tables.

Owns colours (light and dark), sizes and layout. Every pair of text and ground keeps a contrast of 4.5 or more:
tests/report/test_pages.py computes it in a browser. A page works without the script: its tables are then unsorted.
"""

from __future__ import annotations

STYLE = """
:root{--paper:#fff;--ink:#1b1f24;--dim:#5b6570;--line:#e3e6ea;--ours:#0b7a6f;--other:#a3abb5;--other-ink:#5b6570;
--wait:#d9480f;--work:#d5dae0;--panel:#f6f7f9;--heat:232,104,16}
@media (prefers-color-scheme:dark){:root{--paper:#14171a;--ink:#e8eaed;--dim:#9aa4af;--line:#2b3138;--ours:#4fd1c0;
--other:#6b7580;--other-ink:#aab3bd;--wait:#ff8b3d;--work:#343b43;--panel:#1c2024;--heat:196,74,8}}
*{box-sizing:border-box}
body{margin:0;background:var(--paper);color:var(--ink);
font:16px/1.5 system-ui,-apple-system,"Segoe UI",Roboto,sans-serif}
main{max-width:46rem;margin:0 auto;padding:2rem 1rem 4rem}
h1{font-size:1.7rem;line-height:1.2;margin:0 0 .5rem}
h2{font-size:1.05rem;margin:2.5rem 0 .5rem}
p{margin:.25rem 0 1rem}
h1,h2,p{overflow-wrap:anywhere}
.lead{font-size:1.1rem}
.note,.key{color:var(--dim);font-size:.875rem}
.swatch{display:inline-block;width:.8em;height:.8em;border-radius:2px;margin-right:.4em}
.work-swatch{margin-left:1.4em;background:var(--work)}.wait-swatch{background:var(--wait)}
svg{display:block;overflow:visible}
svg text{font-size:13px;fill:var(--ink)}
svg .name{font-weight:600}
svg .dim,svg tspan.dim{fill:var(--dim);font-weight:400}
rect.ours,circle.ours{fill:var(--ours)}rect.other,circle.other{fill:var(--other)}
rect.wait{fill:var(--wait)}rect.work{fill:var(--work)}
text.ours-text{fill:var(--ours);font-weight:600}text.other-text{fill:var(--other-ink);font-weight:600}
.halo{paint-order:stroke;stroke:var(--paper);stroke-width:4px}
.line{stroke:var(--line)}.range{stroke:var(--ink);stroke-width:1.5}
.mark{stroke:var(--ink);stroke-dasharray:4 3}
.hit{fill:transparent}.hit:hover{fill:var(--ink);fill-opacity:.5}
.lines{overflow:hidden}
polyline{fill:none;stroke-width:2;vector-effect:non-scaling-stroke;stroke-linejoin:round}
polyline.ours{stroke:var(--ours)}polyline.other{stroke:var(--other)}
.scroll{overflow-x:auto}
table{border-collapse:collapse;font-size:.875rem;font-variant-numeric:tabular-nums;width:100%}
th,td{padding:.4rem .45rem;text-align:right;border-bottom:1px solid var(--line);white-space:nowrap}
th:first-child,td.words{text-align:left}th:first-child{padding-left:0}
td.words{white-space:normal;min-width:12rem}
thead th{color:var(--dim);font-weight:500;vertical-align:bottom;white-space:normal}
thead button{all:unset;cursor:pointer}
thead button:hover{color:var(--ink)}thead button:focus-visible{outline:2px solid var(--ours);outline-offset:2px}
[aria-sort=ascending] button::after{content:" \\2191"}[aria-sort=descending] button::after{content:" \\2193"}
table.grid td{border:1px solid var(--paper);text-align:center;min-width:3.2rem}
table.grid thead th{text-align:center}table.grid th:first-child{text-align:right;padding-left:.45rem}
table.grid th{border:0}table.grid td.marked{outline:2px solid var(--ink);outline-offset:-2px;font-weight:700}
pre{background:var(--panel);padding:.8rem;border-radius:6px;overflow-x:auto;font-size:.8rem;line-height:1.45}
"""

SORTING = """
for (const table of document.querySelectorAll("table.sorts")) {
  const body = table.tBodies[0], heads = [...table.tHead.rows[0].cells];
  heads.forEach((head, column) => {
    const button = document.createElement("button");
    button.append(...head.childNodes);
    head.append(button);
    button.addEventListener("click", () => {
      const down = head.getAttribute("aria-sort") === "ascending";
      heads.forEach(other => other.removeAttribute("aria-sort"));
      head.setAttribute("aria-sort", down ? "descending" : "ascending");
      const key = row => row.cells[column].textContent.replaceAll(",", "").trim();
      const rows = [...body.rows], number = row => parseFloat(key(row));
      const text = !rows.some(row => isFinite(number(row)));
      const missing = row => text ? key(row) === "" : !isFinite(number(row));
      const order = (a, b) => text ? key(a).localeCompare(key(b)) : number(a) - number(b);
      rows.sort((a, b) => missing(a) - missing(b) || (missing(a) ? 0 : (down ? -1 : 1) * order(a, b)));
      body.append(...rows);
    });
  });
}
"""
"""A click on a column's head sorts by it, by number where its cells begin with some; a second one turns it round. What
has no value stays last."""
