"""How the report looks: one style sheet, light and dark, for a wide screen and for a phone."""

from __future__ import annotations

from typing import Final

STYLE: Final = """
:root { color-scheme: light dark;
  --paper: #f6f4ef; --card: #fffdf9; --ink: #22252b; --soft: #6b6f78; --rule: #e2ded4;
  --blue: #1f6f8b; --band: #1f6f8b2e; --mean: #c98a2b; --red: #c8362b; --green: #3c8a5a; --sky: #d9e8ec; }
@media (prefers-color-scheme: dark) { :root {
  --paper: #14171c; --card: #1c2027; --ink: #e7e5df; --soft: #9aa0aa; --rule: #2d323b;
  --blue: #6cc0d8; --band: #6cc0d833; --mean: #e5b362; --red: #ff7a6b; --green: #79c796; --sky: #1d2c33; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--paper); color: var(--ink);
  font: 16px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Noto Sans", sans-serif; }
main { max-width: 1120px; margin: 0 auto; padding: 0 16px 64px; }
header { background: linear-gradient(var(--sky), var(--paper)); padding: 40px 0 0; margin-bottom: 8px; }
header > div { max-width: 1120px; margin: 0 auto; padding: 0 16px; }
h1 { font-size: clamp(1.7rem, 5vw, 2.6rem); line-height: 1.15; margin: 0; letter-spacing: -.02em; font-weight: 650; }
h2 { font-size: 1.25rem; margin: 48px 0 4px; letter-spacing: -.01em; }
p { margin: 4px 0 16px; max-width: 70ch; } .soft { color: var(--soft); }
nav { display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 14px 0 22px; font-size: .9rem; }
nav a { color: var(--blue); text-decoration: none; } nav a:hover { text-decoration: underline; }
.numbers { display: grid; gap: 12px; grid-template-columns: repeat(auto-fit, minmax(140px, 1fr)); margin: 20px 0; }
.numbers div, .plot, .panel { background: var(--card); border: 1px solid var(--rule); border-radius: 12px; }
.numbers div { padding: 14px 16px; }
.numbers b { display: block; font-size: 1.65rem; line-height: 1.2; font-weight: 650; font-variant-numeric: tabular-nums;
  letter-spacing: -.02em; overflow-wrap: anywhere; }
.numbers span { color: var(--soft); font-size: .85rem; } .numbers .warn b { color: var(--red); }
.plots { display: grid; gap: 12px; grid-template-columns: repeat(auto-fill, minmax(min(300px, 100%), 1fr)); }
.plot { margin: 0; padding: 12px 12px 6px; min-width: 0; }
.plot figcaption { display: flex; justify-content: space-between; gap: 8px; font-size: .88rem; margin-bottom: 4px; }
.plot figcaption b { overflow-wrap: break-word; min-width: 0; font-weight: 600; }
.plot figcaption span { color: var(--soft); white-space: nowrap; }
.plot small { color: var(--soft); font-size: .78rem; } .plot .bell { color: var(--red); font-weight: 600; }
svg { display: block; width: 100%; height: auto; } svg text { font: 10px system-ui, sans-serif; fill: var(--soft); }
.band { fill: var(--band); } .median, .mean { fill: none; stroke-linejoin: round; }
.median { stroke: var(--blue); stroke-width: 1.6; } .mean { stroke: var(--mean); stroke-width: 1.1;
  stroke-dasharray: 3 2.5; }
.alarm { fill: var(--red); stroke: var(--card); stroke-width: 1; } .grid { stroke: var(--rule); stroke-width: .8; }
.activity { fill: var(--blue); opacity: .5; } .hover { fill: transparent; } .hover:hover { fill: var(--band); }
.hero svg { height: 120px; } .ends { display: flex; justify-content: space-between; color: var(--soft);
  font-size: .8rem; margin-top: 4px; }
.panel { padding: 6px 16px; overflow-x: auto; }
.row { display: grid; grid-template-columns: minmax(0, 17rem) minmax(0, 1fr) 11rem; gap: 4px 16px; align-items: center;
  padding: 8px 0; border-bottom: 1px solid var(--rule); font-size: .9rem; }
.row:last-child { border: 0; } .row .name { overflow-wrap: anywhere; } .row .fact { color: var(--soft); font-size:
  .82rem;
  text-align: right; }
.row svg { height: 14px; } .heard { fill: var(--green); } .silent .heard { fill: var(--red); opacity: .75; }
.lifeline { stroke: var(--soft); stroke-width: 1; opacity: .5; vector-effect: non-scaling-stroke; }
.bar { background: var(--rule); border-radius: 4px; height: 12px; overflow: hidden; display: flex; }
.bar i { display: block; height: 100%; background: var(--blue); min-width: 2px; } .bar .bad { background: var(--red); }
.bar .good { background: var(--green); } .bar .off { background: var(--soft); }
.dot { display: inline-block; width: .6em; height: .6em; border-radius: 50%; background: var(--green); margin-right:
  .5em; }
.silent .dot { background: var(--red); }
table { border-collapse: collapse; width: 100%; font-size: .88rem; font-variant-numeric: tabular-nums; }
th { text-align: left; color: var(--soft); font-weight: 500; } th, td { padding: 7px 12px 7px 0;
  border-bottom: 1px solid var(--rule); vertical-align: top; } tr:last-child td { border: 0; }
.number { text-align: right; white-space: nowrap; } .time { white-space: nowrap; }
code { font: .85em/1.4 ui-monospace, "DejaVu Sans Mono", monospace;
  overflow-wrap: anywhere; } td code { display: inline-block; max-width: 44ch; }
details { border-bottom: 1px solid var(--rule); padding: 8px 0; } details:last-child { border: 0; }
summary { cursor: pointer; } summary .bar { display: inline-flex; width: min(30vw, 260px); vertical-align: middle;
  margin: 0 10px; } .nothing { color: var(--soft); font-style: italic; }
.key { font-size: .82rem; color: var(--soft); display: flex; flex-wrap: wrap; gap: 2px 18px; margin: 0 0 12px; }
.key i { display: inline-block; width: 18px; height: 0; border-top: 2px solid var(--blue); vertical-align: middle;
  margin-right: 6px; } .key .k-band { border: 0; height: 10px; background: var(--band); } .key .k-mean {
  border-top: 2px dashed var(--mean); } .key .k-alarm { border: 0; width: 9px; height: 9px; border-radius: 50%;
  background: var(--red); }
footer { margin-top: 56px; color: var(--soft); font-size: .82rem; overflow-wrap: anywhere; }
@media (max-width: 640px) { .wide { display: none; }
  .row { grid-template-columns: minmax(0, 1fr) auto; } .row > :nth-child(2) { grid-column:
  1 / -1;
  grid-row: 2; } header { padding-top: 24px; } h2 { margin-top: 36px; } .hero svg { height: 80px; } }
@media print { body { background: none; } .plot, .panel { break-inside: avoid; } }
"""
