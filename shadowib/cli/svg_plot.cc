#include "shadowib/cli/svg_plot.h"

#include <time.h>

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <map>

#include "shadowib/cli/units.h"

namespace shadowib::cli {
namespace {

constexpr double kWidth = 1000, kLeft = 76, kRight = 14, kTop = 26, kBottom = 30;
constexpr double kPlotHeight = 190, kLaneHeight = 30, kColumn = 2;

template <typename... Args>
std::string text_of(const char* format, Args... args) {
  char text[400];
  std::snprintf(text, sizeof(text), format, args...);
  return text;
}

// Coordinates need no more than a tenth of a unit.
std::string number(double value) {
  std::string text = text_of("%.1f", value);
  return text.ends_with(".0") ? text.substr(0, text.size() - 2) : text;
}

std::string open_svg(const std::string& label, double height) {
  return "<svg viewBox=\"0 0 " + number(kWidth) + " " + number(height) + "\" role=\"img\" aria-label=\"" +
         escaped(label) + "\">\n";
}

std::string tip_of(const std::string& tip) { return "<title>" + escaped(tip) + "</title>"; }

// --- the axis of time

struct TimeAxis {
  TimeSpan span;
  double x(std::int64_t time_ms) const {
    const double part = static_cast<double>(time_ms - span.from_ms) / static_cast<double>(span.to_ms - span.from_ms);
    return kLeft + std::clamp(part, 0.0, 1.0) * (kWidth - kLeft - kRight);
  }
};

std::int64_t tick_step_s(double span_s) {
  constexpr std::int64_t kSteps[] = {1,     2,     5,      10,     15,     30,      60,      120,
                                     300,   600,   900,    1800,   3600,   7200,    10800,   21600,
                                     43200, 86400, 172800, 432000, 864000, 2592000, 7776000, 31104000};
  for (const std::int64_t step : kSteps)
    if (span_s / static_cast<double>(step) <= 8) return step;
  return 311040000;
}

std::string tick_label(std::int64_t second, std::int64_t step) {
  const time_t at = second;
  tm broken{};
  ::gmtime_r(&at, &broken);
  const bool midnight = broken.tm_hour == 0 && broken.tm_min == 0 && broken.tm_sec == 0;
  char text[32];
  ::strftime(text, sizeof(text),
             step >= 2592000 ? "%Y-%m"
             : midnight      ? "%b %e"
             : step >= 60    ? "%H:%M"
                             : "%H:%M:%S",
             &broken);
  return text;
}

std::string draw_time_axis(const TimeAxis& axis, double top, double bottom) {
  const double span_s = static_cast<double>(axis.span.to_ms - axis.span.from_ms) / 1e3;
  const std::int64_t step = tick_step_s(span_s);
  std::string text;
  for (std::int64_t at = (axis.span.from_ms / 1000 / step + 1) * step; at * 1000 <= axis.span.to_ms; at += step) {
    const std::string x = number(axis.x(at * 1000));
    text += "<path class=\"grid\" d=\"M" + x + " " + number(top) + "V" + number(bottom) + "\"/>";
    if (std::stod(x) < kWidth - 30)
      text += "<text class=\"tick mid\" x=\"" + x + "\" y=\"" + number(bottom + 17) + "\">" + tick_label(at, step) +
              "</text>\n";
  }
  return text + "<path class=\"axis\" d=\"M" + number(kLeft) + " " + number(bottom) + "H" + number(kWidth - kRight) +
         "\"/>\n";
}

// --- the axis of values

struct ValueAxis {
  double low, high, top, bottom;
  bool logarithmic;
  std::vector<double> ticks;

  double y(double value) const {
    double part = (value - low) / (high - low);
    if (logarithmic)
      part = (std::log10(std::max(value, low)) - std::log10(low)) / (std::log10(high) - std::log10(low));
    return bottom - std::clamp(part, 0.0, 1.0) * (bottom - top);
  }
};

double nice_step(double range) {
  const double raw = range / 4, power = std::pow(10, std::floor(std::log10(raw)));
  for (const double factor : {1.0, 2.0, 2.5, 5.0})
    if (raw <= factor * power) return factor * power;
  return 10 * power;
}

ValueAxis linear_axis(double greatest) {
  const double step = nice_step(greatest > 0 ? greatest : 1);
  ValueAxis axis{0, step * std::ceil((greatest > 0 ? greatest : 1) / step), 0, 0, false, {}};
  for (int i = 0; static_cast<double>(i) * step <= axis.high * 1.001; ++i) axis.ticks.push_back(i * step);
  return axis;
}

ValueAxis logarithmic_axis(double least, double greatest) {
  if (greatest <= 0) least = greatest = 1;
  least = std::max(least, greatest / 1e6);
  ValueAxis axis{
      std::pow(10, std::floor(std::log10(least))), std::pow(10, std::ceil(std::log10(greatest))), 0, 0, true, {}};
  if (axis.high <= axis.low) axis.high = axis.low * 10;
  for (double at = axis.low; at <= axis.high * 1.001; at *= 10) {
    axis.ticks.push_back(at);
    // Of one or two decades the halves, too.
    if (axis.high / axis.low <= 101 && at < axis.high)
      for (const double factor : {2.0, 5.0}) axis.ticks.push_back(at * factor);
  }
  return axis;
}

std::string tick_number(double value) {
  if (value >= 10000) return human_count(value);
  return text_of(value < 1 ? "%.3g" : "%.4g", value);
}

std::string draw_value_axis(const ValueAxis& axis, const std::string& unit) {
  std::string text = "<text class=\"unit\" x=\"" + number(kLeft) + "\" y=\"" + number(axis.top - 11) + "\">" +
                     escaped(unit) + "</text>\n";
  for (const double at : axis.ticks) {
    const std::string y = number(axis.y(at));
    text += "<path class=\"grid\" d=\"M" + number(kLeft) + " " + y + "H" + number(kWidth - kRight) + "\"/>";
    text += "<text class=\"tick end\" x=\"" + number(kLeft - 8) + "\" y=\"" + number(axis.y(at) + 4) + "\">" +
            tick_number(at) + "</text>\n";
  }
  return text;
}

// --- points

std::string draw_singly(const TimeAxis& time, const ValueAxis& axis, const std::string& style,
                        const std::vector<PlotPoint>& points) {
  std::string line, circles;
  for (const PlotPoint& p : points) {
    const std::string x = number(time.x(p.time_ms)), y = number(axis.y(p.value));
    line += (line.empty() ? "M" : "L") + x + " " + y;
    circles += "<circle cx=\"" + x + "\" cy=\"" + y + "\" r=\"3.2\">" + tip_of(p.tip) + "</circle>\n";
  }
  return "<path class=\"line thin " + style + "\" d=\"" + line + "\"/><g class=\"point " + style + "\">\n" + circles +
         "</g>\n";
}

std::string draw_in_columns(const TimeAxis& time, const ValueAxis& axis, const std::string& style,
                            const std::vector<PlotPoint>& points) {
  std::map<long, std::vector<double>> columns;
  for (const PlotPoint& p : points) columns[std::lround(time.x(p.time_ms) / kColumn)].push_back(p.value);
  std::string upper, lower, line;
  for (auto& [column, values] : columns) {
    std::sort(values.begin(), values.end());
    const std::string x = number(static_cast<double>(column) * kColumn) + " ";
    upper += (upper.empty() ? "M" : "L") + x + number(axis.y(values.back()));
    lower.insert(0, "L" + x + number(axis.y(values.front())));
    line += (line.empty() ? "M" : "L") + x + number(axis.y(values[values.size() / 2]));
  }
  return "<path class=\"band " + style + "\" d=\"" + upper + lower + "Z\"/><path class=\"line " + style + "\" d=\"" +
         line + "\"/>\n";
}

std::string draw_marks(const TimeAxis& time, const Lane& lane, double y) {
  std::string text;
  if (lane.marks.size() <= kShownSingly) {
    for (const PlotPoint& p : lane.marks)
      text += "<circle cx=\"" + number(time.x(p.time_ms)) + "\" cy=\"" + number(y) + "\" r=\"4.5\">" + tip_of(p.tip) +
              "</circle>\n";
    return "<g class=\"point " + lane.style + "\">\n" + text + "</g>\n";
  }
  std::map<long, int> columns;
  for (const PlotPoint& p : lane.marks) ++columns[std::lround(time.x(p.time_ms) / kColumn)];
  for (const auto& column : columns)
    text += "M" + number(static_cast<double>(column.first) * kColumn) + " " + number(y - 6) + "v12";
  return "<path class=\"comb " + lane.style + "\" d=\"" + text + "\"/>\n";
}

}  // namespace

std::string escaped(const std::string& text) {
  std::string to;
  for (const char c : text) {
    switch (c) {
      case '&':
        to += "&amp;";
        break;
      case '<':
        to += "&lt;";
        break;
      case '>':
        to += "&gt;";
        break;
      case '"':
        to += "&quot;";
        break;
      default:
        to += static_cast<unsigned char>(c) < 0x20 ? ' ' : c;
    }
  }
  return to;
}

std::string value_plot(const ValuePlot& plot, const TimeSpan& span, const std::vector<PlotPoint>& points) {
  const TimeAxis time{span};
  double least = INFINITY, greatest = 0;
  for (const PlotPoint& p : points) {
    greatest = std::max(greatest, p.value);
    if (p.value > 0) least = std::min(least, p.value);
  }
  ValueAxis axis = plot.logarithmic ? logarithmic_axis(std::min(least, greatest), greatest) : linear_axis(greatest);
  axis.top = kTop;
  axis.bottom = kTop + kPlotHeight;
  return open_svg(plot.label, axis.bottom + kBottom) + draw_value_axis(axis, plot.unit) +
         draw_time_axis(time, axis.top, axis.bottom) +
         (points.size() <= kShownSingly ? draw_singly : draw_in_columns)(time, axis, plot.style, points) + "</svg>\n";
}

std::string lane_plot(const std::string& label, const TimeSpan& span, const std::vector<Lane>& lanes) {
  const TimeAxis time{span};
  const double top = 6, bottom = top + kLaneHeight * static_cast<double>(lanes.size());
  std::string text = open_svg(label, bottom + kBottom) + draw_time_axis(time, top, bottom);
  for (std::size_t i = 0; i < lanes.size(); ++i) {
    const double y = top + kLaneHeight * (static_cast<double>(i) + 0.5);
    text += "<path class=\"grid\" d=\"M" + number(kLeft) + " " + number(y) + "H" + number(kWidth - kRight) + "\"/>";
    text += "<text class=\"tick end\" x=\"" + number(kLeft - 8) + "\" y=\"" + number(y + 4) + "\">" +
            escaped(lanes[i].name) + "</text>\n";
    text += draw_marks(time, lanes[i], y);
  }
  return text + "</svg>\n";
}

std::string bar_plot(const std::string& label, const std::string& unit, const std::vector<BarPart>& parts,
                     const std::vector<StackedBar>& bars) {
  double greatest = 0;
  for (const StackedBar& bar : bars) {
    double sum = 0;
    for (const double value : bar.values) sum += value;
    greatest = std::max(greatest, sum);
  }
  ValueAxis axis = linear_axis(greatest);
  axis.top = kTop;
  axis.bottom = kTop + kPlotHeight;
  std::string text = open_svg(label, axis.bottom + kBottom) + draw_value_axis(axis, unit);
  const double room = (kWidth - kLeft - kRight) / static_cast<double>(std::max<std::size_t>(bars.size(), 1));
  const double width = std::min(room * 0.72, 44.0);
  // Names of bars want some 60 units each.
  const std::size_t every = std::max<std::size_t>(1, static_cast<std::size_t>(std::ceil(60 / room)));
  for (std::size_t i = 0; i < bars.size(); ++i) {
    const double middle = kLeft + room * (static_cast<double>(i) + 0.5);
    double below = 0;
    for (std::size_t part = 0; part < parts.size() && part < bars[i].values.size(); ++part) {
      const double value = bars[i].values[part], y = axis.y(below + value), height = axis.y(below) - y;
      below += value;
      if (height < 0.05) continue;
      text += "<rect class=\"" + parts[part].style + "\" x=\"" + number(middle - width / 2) + "\" y=\"" +
              text_of("%.2f", y) + "\" width=\"" + number(width) + "\" height=\"" + text_of("%.2f", height) + "\">" +
              tip_of("set " + bars[i].name + ", " + parts[part].name + ": " + tick_number(value) + " ms") +
              "</rect>\n";
    }
    if (i % every == 0)
      text += "<text class=\"tick mid\" x=\"" + number(middle) + "\" y=\"" + number(axis.bottom + 17) + "\">" +
              escaped(bars[i].name) + "</text>\n";
  }
  return text + "<path class=\"axis\" d=\"M" + number(kLeft) + " " + number(axis.bottom) + "H" +
         number(kWidth - kRight) + "\"/>\n</svg>\n";
}

}  // namespace shadowib::cli
