"""The page's style sheet: light and dark by the reader's setting, light on paper."""

from __future__ import annotations

CSS = """
:root {
  color-scheme: light dark;
  --page: #faf9f6; --card: #ffffff; --ink: #1f2328; --muted: #656d76; --grid: #e4e2dd;
  --track: #eceae5; --edge: #e2dfd8; --accent: #0072b2; --note: #f4f1e9;
  --s0: #0072b2; --s1: #d55e00; --s2: #009e73; --s3: #cc79a7; --s4: #e69f00; --s5: #56b4e9;
}
@media screen and (prefers-color-scheme: dark) {
  :root {
    --page: #131619; --card: #1a1e22; --ink: #e7e5e0; --muted: #9ba3ab; --grid: #2d3338;
    --track: #2a2f34; --edge: #2d3338; --accent: #58aee6; --note: #22272b;
    --s0: #4aa5de; --s1: #f0883e; --s2: #2cc296; --s3: #e29bc5; --s4: #f2b632; --s5: #96d0f5;
  }
}
* { box-sizing: border-box; }
html { scroll-behavior: smooth; }
body {
  margin: 0; background: var(--page); color: var(--ink);
  font: 15px/1.55 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", "DejaVu Sans",
    Arial, sans-serif;
}
main, header, footer { max-width: 1180px; margin: 0 auto; padding: 0 24px; }
header { padding-top: 40px; }
.brand { display: flex; align-items: center; gap: 10px; color: var(--muted); font-size: 14px; }
.brand svg { width: 26px; height: 26px; }
h1 { font-size: 32px; line-height: 1.2; letter-spacing: -0.015em; margin: 14px 0 4px; }
.lead { color: var(--muted); margin: 0 0 14px; font-size: 17px; }
.facts { display: flex; flex-wrap: wrap; gap: 4px 22px; margin: 0 0 18px; font-size: 14px; }
.facts div { display: inline-flex; gap: 7px; padding: 0; border: 0; }
nav { display: flex; flex-wrap: wrap; gap: 4px 18px; padding: 10px 0; font-size: 14px;
  border-top: 1px solid var(--edge); border-bottom: 1px solid var(--edge); }
a { color: var(--accent); text-decoration: none; }
a:hover { text-decoration: underline; }
section { margin-top: 36px; }
h2 { font-size: 21px; letter-spacing: -0.01em; margin: 0 0 12px; }
h3 { font-size: 15.5px; margin: 0 0 8px; }
.tiles { display: grid; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); gap: 12px;
  margin-bottom: 20px; }
.tile { background: var(--card); border: 1px solid var(--edge); border-radius: 10px;
  padding: 12px 16px; }
.tile b { display: block; font-size: 23px; font-weight: 600; letter-spacing: -0.01em;
  line-height: 1.3; font-variant-numeric: tabular-nums; }
.tile span { color: var(--muted); font-size: 13px; }
.tile small { color: var(--muted); font-size: 13px; font-weight: 400; white-space: nowrap; }
.grid { display: grid; grid-template-columns: repeat(2, minmax(0, 1fr)); gap: 18px; }
.card { background: var(--card); border: 1px solid var(--edge); border-radius: 12px;
  padding: 18px 20px 16px; margin: 0; min-width: 0; display: flex; flex-direction: column; }
.wide { grid-column: 1 / -1; }
.card figure { margin: 0; display: flex; flex-direction: column; flex: 1; }
.lone { grid-column: 1 / -1; }
.lone figure { flex-direction: row; gap: 32px; }
.lone svg.plot { flex: 0 0 48%; width: 48%; align-self: flex-start; }
figcaption { color: var(--muted); font-size: 13.5px; line-height: 1.5;
  padding-top: 10px; max-width: 100ch; }
.missing { color: var(--muted); background: var(--note); border-radius: 8px; padding: 10px 14px;
  font-size: 13.5px; margin: 0; }
.lacking { color: var(--muted); font-size: 13px; font-style: italic; margin: 6px 0 0; }
.keys { display: flex; flex-wrap: wrap; gap: 2px 16px; font-size: 13px; margin: 0 0 6px; }
.key { display: inline-flex; align-items: center; gap: 7px; }
.key svg { width: 24px; height: 10px; flex: none; }
svg.plot { width: 100%; height: auto; display: block; }
svg.plot * { stroke-linejoin: round; stroke-linecap: butt; }
svg.plot text { font-family: inherit; font-variant-numeric: tabular-nums; }
.scroll { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-size: 14px;
  font-variant-numeric: tabular-nums; }
th, td { text-align: right; padding: 7px 12px; border-bottom: 1px solid var(--edge);
  white-space: nowrap; vertical-align: top; }
th:first-child, td:first-child { text-align: left; padding-left: 0; }
th:last-child, td:last-child { padding-right: 0; }
tr:last-child > * { border-bottom: 0; }
th { font-weight: 600; }
thead th, thead td { color: var(--muted); font-size: 13px; font-weight: 600; }
tbody th { font-weight: 500; }
td.words { text-align: left; padding-left: 28px; color: var(--muted); font-size: 13px;
  white-space: normal; min-width: 200px; width: 55%; }
td small, th small { color: var(--muted); font-weight: 400; }
td.best { font-weight: 650; }
.sub { display: block; color: var(--muted); font-size: 12.5px; font-weight: 400; }
dl.list { display: grid; grid-template-columns: repeat(auto-fill, minmax(250px, 1fr)); gap: 0 28px;
  margin: 0; font-size: 13.5px; }
dl.list div { display: flex; justify-content: space-between; gap: 14px; padding: 5px 0;
  border-bottom: 1px solid var(--edge); min-width: 0; }
.scroll + dl.list, .scroll + h3 { margin-top: 18px; }
dt { color: var(--muted); white-space: nowrap; }
dd { margin: 0; text-align: right; overflow-wrap: anywhere; }
.stack { display: grid; gap: 18px; }
.stack > * { min-width: 0; }
footer { color: var(--muted); font-size: 13px; padding-top: 40px; padding-bottom: 48px; }
@media screen and (max-width: 820px) {
  .grid { grid-template-columns: minmax(0, 1fr); }
  .grid > * { grid-column: auto; }
  .lone figure { flex-direction: column; gap: 0; }
  .lone svg.plot { flex: none; width: 100%; }
  main, header, footer { padding-left: 14px; padding-right: 14px; }
}
@media print {
  @page { margin: 14mm; }
  body { background: #fff; font-size: 10pt; }
  nav { display: none; }
  main, header, footer { max-width: none; padding: 0 1px; }
  header { padding-top: 0; }
  section { margin-top: 16px; }
  .grid { gap: 10px; }
  .card { padding: 10px 12px; }
  h1 { font-size: 20pt; }
  h2 { font-size: 14pt; }
  h3 { font-size: 10pt; }
  figcaption, .keys, .lacking, .missing, dl.list { font-size: 8pt; }
  .sub, td small { font-size: 7pt; }
  .card, .tile { break-inside: avoid; }
  h2 { break-after: avoid; }
  table, thead th, td.words { font-size: 8pt; }
  th, td { padding: 3px 6px; }
  td.words { min-width: 0; width: auto; }
}
"""

MARK = (
    '<svg viewBox="0 0 32 32" fill="none" stroke="currentColor" stroke-width="1.3" '
    'aria-hidden="true"><path d="M16 2v28M4 9l24 14M28 9L4 23"/>'
    '<path d="M16 5.5Q20.500 10.500 25.500 10.500Q23 16 25.500 21.500Q20.500 21.500 16 26.500'
    'Q11.500 21.500 6.500 21.500Q9 16 6.500 10.500Q11.500 10.500 16 5.500Z"/>'
    '<path d="M16 10.500Q18.200 13 20.700 13.200Q19.500 16 20.700 18.800Q18.200 19 16 21.500'
    'Q13.800 19 11.300 18.800Q12.500 16 11.300 13.200Q13.800 13 16 10.500Z"/></svg>'
)
"""A small spider's web: gossamer."""
