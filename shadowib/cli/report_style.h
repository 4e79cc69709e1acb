// How a report looks: the style sheet of report_page.cc and of the plots in it (svg_plot.h).
#pragma once

namespace shadowib::cli {

inline constexpr char kReportStyle[] = R"(
:root { color-scheme: light dark; --page: #f5f6f8; --card: #fff; --text: #1c2128; --soft: #5c6670; --line: #e4e8ed; --axis: #aab3bd;
  --series: #2463b8; --good: #2c8a57; --bad: #c4372f; --other: #7a5fb0;
  --stop: #8fb3d9; --settle: #2463b8; --quiesce: #7a5fb0; --inspect: #d08a2e; --save: #2c8a57; --commit: #b8a13a; }
@media (prefers-color-scheme: dark) { :root { --page: #14171c; --card: #1d2229; --text: #e6e9ed; --soft: #9aa5b1; --line: #2d343d;
  --axis: #56616d; --series: #6ea8f0; --good: #5fc08c; --bad: #f0776e; --other: #b49ae6;
  --stop: #466a91; --settle: #6ea8f0; --quiesce: #b49ae6; --inspect: #e3a653; --save: #5fc08c; --commit: #d6c25f; } }
* { box-sizing: border-box; }
body { margin: 0; background: var(--page); color: var(--text); font: 15px/1.5 system-ui, "Segoe UI", "DejaVu Sans", sans-serif; }
main { max-width: 1080px; margin: 0 auto; padding: 28px 20px 48px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 17px; margin: 0; }
header p { margin: 0; color: var(--soft); overflow-wrap: anywhere; }
.tiles { display: grid; grid-template-columns: repeat(auto-fill, minmax(126px, 1fr)); gap: 12px; margin: 20px 0; }
.tile, figure, section { background: var(--card); border: 1px solid var(--line); border-radius: 8px; }
.tile { padding: 10px 12px; } .tile dt { color: var(--soft); font-size: 13px; } .tile dd { margin: 0; font-size: 19px; font-weight: 600; white-space: nowrap; }
.tile p { margin: 0; color: var(--soft); font-size: 12px; overflow-wrap: anywhere; } .tile.bad p { color: var(--bad); }
figure, section { margin: 0 0 16px; padding: 14px 16px; }
figcaption p { margin: 0 0 6px; color: var(--soft); font-size: 13px; }
svg { display: block; width: 100%; height: auto; }
svg text { fill: var(--soft); font-size: 12px; } .mid { text-anchor: middle; } .end { text-anchor: end; }
.grid { stroke: var(--line); } .axis { stroke: var(--axis); } .line { fill: none; stroke-width: 1.6; stroke-linejoin: round; }
.thin { stroke-width: 1; opacity: .45; } .band { opacity: .28; stroke: none; } .comb { stroke-width: 1.6; fill: none; }
.line.series { stroke: var(--series); } .band.series, .point.series { fill: var(--series); }
.event-started, .event-ended { fill: var(--soft); stroke: var(--soft); } .event-checkpoint, .event-clc { fill: var(--series); stroke: var(--series); }
.event-restart { fill: var(--good); stroke: var(--good); }
.event-failure, .event-checkpoint_failed, .event-kill_failed, .event-clc_failed, .event-restart_failed, .event-recovery_failed { fill: var(--bad); stroke: var(--bad); }
.point { stroke: none; } .point circle:hover { stroke: var(--text); stroke-width: 2; }
rect:hover { opacity: .75; }
.phase-stop { fill: var(--stop); background: var(--stop); } .phase-settle { fill: var(--settle); background: var(--settle); }
.phase-quiesce { fill: var(--quiesce); background: var(--quiesce); } .phase-inspect { fill: var(--inspect); background: var(--inspect); }
.phase-save { fill: var(--save); background: var(--save); } .phase-commit { fill: var(--commit); background: var(--commit); }
.legend { list-style: none; display: flex; flex-wrap: wrap; gap: 4px 16px; margin: 0; padding: 0; color: var(--soft); font-size: 13px; }
.legend i { display: inline-block; width: 11px; height: 11px; border-radius: 2px; margin-right: 6px; }
.wide { overflow-x: auto; } table { border-collapse: collapse; width: 100%; font-size: 13px; margin-top: 8px; }
th { text-align: left; color: var(--soft); font-weight: 500; } td, th { padding: 4px 12px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td:first-child, td:nth-child(2) { white-space: nowrap; font-variant-numeric: tabular-nums; } td:last-child { overflow-wrap: anywhere; }
tr.bad td:nth-child(2) { color: var(--bad); }
@media print { :root { --page: #fff; } main { padding: 0; } figure, section { break-inside: avoid; } }
)";

}  // namespace shadowib::cli
