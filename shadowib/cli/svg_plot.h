// Plots over time, as SVG that stands in a page. Colours are classes, which the page gives a light and a dark look.
//
// However many points there are, a plot stays small: more than kShownSingly are drawn as a band from the least to the
// greatest of each column, with a line through the medians.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace shadowib::cli {

inline constexpr std::size_t kShownSingly = 300;

// "&", "<", ">" and quotes escaped, for text and attributes.
std::string escaped(const std::string& text);

// The times that a page's plots have in common.
struct TimeSpan {
  std::int64_t from_ms, to_ms;  // since 1970
};

struct PlotPoint {
  std::int64_t time_ms;
  double value;
  std::string tip;  // shown where the pointer rests
};

struct ValuePlot {
  std::string label;  // of the plot, for those who do not see it
  std::string unit;   // written above the axis
  bool logarithmic;
  std::string style;  // a class: the colour of line, band and points
};
std::string value_plot(const ValuePlot& plot, const TimeSpan& span, const std::vector<PlotPoint>& points);

struct Lane {
  std::string name, style;
  std::vector<PlotPoint> marks;  // value is not looked at
};
std::string lane_plot(const std::string& label, const TimeSpan& span, const std::vector<Lane>& lanes);

struct StackedBar {
  std::string name;            // below the bar, if there is room
  std::vector<double> values;  // from the bottom up
};
struct BarPart {
  std::string name, style;
};
std::string bar_plot(const std::string& label, const std::string& unit, const std::vector<BarPart>& parts,
                     const std::vector<StackedBar>& bars);

}  // namespace shadowib::cli
