"""The style sheet of the HTML report: light, and dark where the reader's system is."""

from __future__ import annotations

from typing import Final

PATTERNS: Final = """
<svg width="0" height="0" style="position:absolute" aria-hidden="true"><defs>
<pattern id="p-dependency" width="6" height="6" patternUnits="userSpaceOnUse"
 patternTransform="rotate(45)"><rect class="pd-bg" width="6" height="6"/>
<rect class="pd-fg" width="2" height="6"/></pattern>
<pattern id="p-communication" width="6" height="6" patternUnits="userSpaceOnUse">
<rect class="pc-bg" width="6" height="6"/><circle class="pc-fg" cx="3" cy="3" r="1.3"/></pattern>
<pattern id="p-host" width="6" height="6" patternUnits="userSpaceOnUse">
<rect class="ph-bg" width="6" height="6"/><path class="ph-fg" d="M0 3H6M3 0V6"/></pattern>
</defs></svg>
"""
"""Causes of idle differ in their shading, not in colour alone."""

STYLE: Final = """
:root { color-scheme: light dark;
  --ground: #fbfcfd; --panel: #ffffff; --ink: #1d252d; --dim: #5d6874; --rule: #dfe4e8;
  --accent: #00796b; --bad: #b3202e; --warn: #8a6100; --info: #3b6ea5; --good: #22743f;
  --F: #2d7cc7; --F2: #1f64a6; --onF: #fff; --B: #eda64f; --B2: #d18a33; --onB: #201202;
  --I: #b45c88; --I2: #96466f; --onI: #fff; --W: #b4c254; --W2: #96a43d; --onW: #171d05;
  --X: #7d8794; --edge: #eff1f3; --dep: #f3efe2; --dep2: #c9b470; --com: #e4f1f3;
  --com2: #1f7784; --host: #f7e6e8; --host2: #c8616d; --busy: #3c9a5d; --onbusy: #fff;
  --O: #3c9a5d; --A: #8a55c7; --bar: #6f9fce; --over: #b3202e; --loss: #00796b; --late: #b57a2c; }
@media (prefers-color-scheme: dark) { :root {
  --ground: #0d1218; --panel: #131b23; --ink: #cdd5de; --dim: #8592a0; --rule: #26303a;
  --accent: #7fd1c7; --bad: #f0717b; --warn: #e9c767; --info: #7fb2e8; --good: #67bb84;
  --F: #529fe8; --F2: #3d85c9; --onF: #08121c; --B: #e8a14d; --B2: #c98536; --onB: #1a0f02;
  --I: #d88fb4; --I2: #b87397; --onI: #1a0712; --W: #b9c763; --W2: #98a64a; --onW: #0f1404;
  --X: #7d8794; --edge: #1a222b; --dep: #1f2124; --dep2: #6d6240; --com: #17262c;
  --com2: #54a9b5; --host: #241d26; --host2: #a85f6a; --busy: #4a9a69; --onbusy: #06140b;
  --O: #67bb84; --A: #c9a2f5; --bar: #56809f; --over: #f0717b; --loss: #7fd1c7;
  --late: #c99a5b; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--ground); color: var(--ink);
  font: 15px/1.5 system-ui, -apple-system, "Segoe UI", Roboto, "Helvetica Neue", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 26px; margin: 0; letter-spacing: -0.01em; }
h1 small { color: var(--dim); font-weight: 400; font-size: 16px; margin-left: 10px; }
h2 { font-size: 17px; margin: 34px 0 8px; }
h2 small { color: var(--dim); font-weight: 400; font-size: 14px; margin-left: 8px; }
p { margin: 4px 0 10px; } .dim { color: var(--dim); }
code { font: 12.5px ui-monospace, "SF Mono", Menlo, Consolas, monospace; color: var(--dim);
  overflow-wrap: anywhere; }
.facts { display: grid; grid-template-columns: repeat(auto-fit, minmax(150px, 1fr)); gap: 10px;
  margin: 18px 0 4px; }
.fact { background: var(--panel); border: 1px solid var(--rule); border-radius: 8px;
  padding: 10px 14px; }
.fact b { display: block; font-size: 22px; line-height: 1.25; font-weight: 600;
  font-variant-numeric: tabular-nums; }
.fact span { color: var(--dim); font-size: 13px; }
.finding { background: var(--panel); border: 1px solid var(--rule); border-left-width: 4px;
  border-radius: 6px; padding: 9px 14px; margin: 8px 0; }
.finding b { font-size: 12.5px; margin-right: 8px; }
.finding.error { border-left-color: var(--bad); } .finding.error b { color: var(--bad); }
.finding.warning { border-left-color: var(--warn); } .finding.warning b { color: var(--warn); }
.finding.info { border-left-color: var(--info); } .finding.info b { color: var(--info); }
.finding.good { border-left-color: var(--good); }
figure { margin: 0; overflow-x: auto; background: var(--panel); border: 1px solid var(--rule);
  border-radius: 8px; padding: 14px 14px 10px; }
figure svg { display: block; width: 100%; min-width: 620px; height: auto; }
figcaption { color: var(--dim); font-size: 13px; margin-top: 8px; }
.key { display: inline-block; margin-right: 14px; white-space: nowrap; }
.key svg { display: inline-block; width: 13px; min-width: 0; height: 13px; vertical-align: -2px;
  margin-right: 5px; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums;
  font-size: 14px; }
.scroll { overflow-x: auto; }
th { text-align: right; color: var(--dim); font-weight: 500; padding: 4px 10px;
  border-bottom: 1px solid var(--rule); white-space: nowrap; }
td { text-align: right; padding: 4px 10px; border-bottom: 1px solid var(--rule);
  white-space: nowrap; }
th.l, td.l { text-align: left; } td.bad { color: var(--bad); }
footer { margin-top: 40px; color: var(--dim); font-size: 13px; }
svg text { font: 11px system-ui, -apple-system, "Segoe UI", Roboto, sans-serif;
  fill: var(--ink); }
svg .halo { paint-order: stroke; stroke: var(--panel); stroke-width: 3px; }
svg .dim { fill: var(--dim); } svg .strong { font-weight: 600; } svg .t.loss { fill: var(--loss); }
svg .grid { stroke: var(--rule); stroke-width: 1; }
svg .median { stroke: var(--ink); stroke-width: 1; stroke-dasharray: 4 3; }
svg .expected { stroke: var(--ink); stroke-width: 2; }
svg polyline.loss { fill: none; stroke: var(--loss); stroke-width: 2; }
svg rect.act, svg rect.idle, svg rect.mem, svg rect.busy { stroke: var(--panel);
  stroke-width: 0.8; }
svg .F { fill: var(--F); } svg .F.odd { fill: var(--F2); }
svg .B { fill: var(--B); } svg .B.odd { fill: var(--B2); }
svg .I { fill: var(--I); } svg .I.odd { fill: var(--I2); }
svg .W { fill: var(--W); } svg .W.odd { fill: var(--W2); } svg .X { fill: var(--X); }
svg .plan { opacity: 0.55; }
svg text.on { fill: var(--onF); font-weight: 600; } svg text.on.F.odd { fill: var(--onF); }
svg text.on.B, svg text.on.B.odd { fill: var(--onB); }
svg text.on.I, svg text.on.I.odd { fill: var(--onI); }
svg text.on.W, svg text.on.W.odd { fill: var(--onW); } svg text.on.busy { fill: var(--onbusy); }
svg text.on.warmup, svg text.on.cooldown, svg text.on.dependency, svg text.on.communication,
svg text.on.host { fill: var(--ink); paint-order: stroke; stroke: var(--panel);
  stroke-width: 3px; }
svg .idle.warmup, svg .idle.cooldown { fill: var(--edge); }
svg .idle.dependency { fill: url(#p-dependency); }
svg .idle.communication { fill: url(#p-communication); } svg .idle.host { fill: url(#p-host); }
.pd-bg { fill: var(--dep); } .pd-fg { fill: var(--dep2); opacity: 0.6; }
.pc-bg { fill: var(--com); } .pc-fg { fill: var(--com2); }
.ph-bg { fill: var(--host); } .ph-fg { stroke: var(--host2); stroke-width: 1; }
svg rect.busy { fill: var(--busy); } svg .bar { fill: var(--bar); } svg .bar.over { fill:
  var(--over); } svg .late { fill: var(--late); }
svg .mem.P { fill: var(--F); } svg .mem.G { fill: var(--B); } svg .mem.O { fill: var(--O); }
svg .mem.A { fill: var(--A); } svg text.on.mem { fill: var(--onF); }
svg text.on.mem.G { fill: var(--onB); }
@media print { body { background: #fff; } figure, .fact, .finding { break-inside: avoid; } }
"""
